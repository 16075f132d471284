# The ways in for a fresh machine: `make demo`, `make test`, `make lint`.
# Each creates the virtual environment once; nothing but python3 >= 3.11, make and a C++ compiler has to be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Tests run in so many processes, a file in one of them; each starts the ranks that its tests need.
WORKERS ?= 2
BESIDE := -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-cluster chaos lint format check-tools clean

help:
	@echo "make demo      the whole path on real text: prepare, pretrain, convert, generate (about 10 minutes on two cores)"
	@echo "make test      the tests"
	@echo "make test-all  the tests, with the long ones: layouts on more ranks, launchers"
	@echo "make test-cluster  runs on a real Slurm of two nodes, under mpirun, and on hosts in network namespaces"
	@echo "make test-llama-cpp  exported GGUF files on llama.cpp, which is built from source first (half an hour on one core)"
	@echo "make chaos     a run is killed 25 times at random, and ends as one that nobody disturbed"
	@echo "make lint      ruff, mypy and the tests of the house rules"
	@echo "make format    let ruff lay out the code"
	@echo "make install   only create $(VENV) with the known-good versions of requirements.txt"
	@echo "make clean     remove $(VENV), caches and what the demo made"

install: $(INSTALLED)

$(INSTALLED): requirements.txt setup.cfg pyproject.toml | check-tools
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	$(BIN)/python -m pip install --quiet -r requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

check-tools:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing: install Python 3.11 or newer, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1), megaxf needs Python 3.11 or newer; name one with PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv module: install it (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || \
	  { echo "make: the headers of $(PYTHON) are missing: torch.compile and DeepSpeed compile against them (Debian and Ubuntu: apt install python3-dev)" >&2; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || \
	  { echo "make: no C++ compiler ($${CXX:-c++}): torch.compile and DeepSpeed need one (Debian and Ubuntu: apt install g++; or name one with CXX=...)" >&2; exit 1; }

demo: $(INSTALLED)
	$(BIN)/python launch/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest $(BESIDE)

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -m "not cluster" $(BESIDE)
	$(BIN)/python -m pytest -m cluster

test-cluster: $(INSTALLED)
	$(BIN)/python -m pytest -m cluster tests/cluster

# llama.cpp comes with its Python package, as sources; CMake and a C++ compiler build it once.
test-llama-cpp: $(INSTALLED)
	$(BIN)/python -m pip install --quiet cmake
	PATH="$(abspath $(BIN)):$$PATH" CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(BIN)/python -m pip install --quiet llama-cpp-python==0.3.36
	$(BIN)/python -m pytest tests/convert/test_llama_cpp.py

chaos: $(INSTALLED)
	$(BIN)/python -m tests.end_to_end.chaos --kills 25 --seed 1

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck -x slurm/*.sh slurm/*.sbatch
	$(BIN)/python -m pytest -q tests/house

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache runs/demo

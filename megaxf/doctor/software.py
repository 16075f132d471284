"""Versions against what megaxf asks for, and the programs that it calls."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from megaxf.doctor.check import Check, judged

LAUNCHERS = ("torchrun", "srun", "mpirun")


def software() -> Iterator[Check]:
    """Python, packages, compiler, launchers."""
    old = sys.version_info < (3, 11)
    yield judged("python", platform.python_version(), (old, "bad", "megaxf needs Python 3.11 or newer"))
    yield from packages()
    compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    advice = "train.compile and DeepSpeed's CPU and NVMe offload need a C++ compiler: install g++"
    yield judged("compiler", compiler or "none", (compiler is None, "note", advice))
    yield Check("launchers", ", ".join(name for name in LAUNCHERS if shutil.which(name)) or "none")


def packages() -> Iterator[Check]:
    """The packages that megaxf always needs, against the bounds of its own metadata: one check if all are right."""
    fitting = []
    for text in requires("megaxf") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = _version(wanted.name)
        outside = found is not None and not wanted.specifier.contains(found, prereleases=True)
        if found is None or outside:
            yield Check(wanted.name, found or "missing", "bad", f'pip install "{wanted.name}{wanted.specifier}"')
        else:
            fitting.append(f"{wanted.name} {found}")
    yield Check("packages", f"{', '.join(fitting[:4])} and {len(fitting[4:])} more, as megaxf asks for")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""Imports point strictly down, and each outside library has one door."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("launch", "megaxf", "data_pipeline")

FLOORS = {
    "launch": 7,
    "megaxf.train": 6,
    "megaxf.doctor": 6,
    "megaxf.engine": 5,
    "megaxf.checkpoint": 5,
    "megaxf.convert": 5,
    "megaxf.generate": 5,
    "megaxf.parallel": 4,
    "megaxf.config": 3,
    "megaxf.models": 2,
    "megaxf.plan": 1,
    "data_pipeline": 1,
}

# Where a library may be imported: prefixes of module names.
DOORS = {
    "deepspeed": ["megaxf.engine"],
    "mpi4py": ["launch.rendezvous", "data_pipeline"],
    "datasets": ["data_pipeline.sources"],
    "sentencepiece": ["data_pipeline.tokenizer"],
    "tensorboard": ["megaxf.train"],
    "torch.utils.tensorboard": ["megaxf.train"],
    "wandb": ["megaxf.train.writers"],
    "accelerate": ["megaxf.generate"],
    "transformers": ["megaxf.convert.verify"],
}


def modules():
    """(dotted name, path) of every module of the product."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(source: str):
    """Every dotted name that a source imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where an import points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    """The room a dotted name lies in, None outside the product."""
    found = [r for r in FLOORS if name == r or name.startswith(r + ".")]
    if name.startswith("megaxf.config"):
        return "megaxf.config"
    return found[0] if found else None


def upward_imports(name: str, source: str) -> list[str]:
    """Imports of `name` that do not point strictly down."""
    own = room(name)
    targets = [(target, room(target)) for target in imports(source)]
    return [t for t, other in targets if own and other and other != own and FLOORS[other] >= FLOORS[own]]


def closed_doors(name: str, source: str) -> list[str]:
    """Imports of `name` that belong behind another room's door."""
    faults = []
    for target in imports(source):
        for library, doors in DOORS.items():
            inside = target == library or target.startswith(library + ".")
            if inside and not any(name.startswith(door) for door in doors):
                faults.append(target)
    return faults


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_point_down_and_use_the_doors(name, path):
    source = path.read_text()
    assert upward_imports(name, source) == []
    assert closed_doors(name, source) == []
    assert name == "megaxf" or room(name), f"{name} belongs to no room of the house"


def test_environment_is_read_in_one_place():
    readers = [n for n, p in modules() if "os.environ" in (text := p.read_text()) or "getenv(" in text]
    assert set(readers) <= {"launch.rendezvous"}


def test_the_rules_can_fail():
    assert upward_imports("megaxf.models.llama", "from megaxf.engine import create") == ["megaxf.engine.create"]
    assert upward_imports("megaxf.checkpoint.save", "import megaxf.convert.names") == ["megaxf.convert.names"]
    assert upward_imports("megaxf.train.loop", "from megaxf.engine import create") == []
    assert closed_doors("megaxf.train.loop", "import deepspeed.comm") == ["deepspeed.comm"]
    assert closed_doors("data_pipeline.sources.hub", "def f():\n    import datasets") == []


def test_planning_and_data_need_no_torch():
    """`megaxf plan` and `megaxf prepare` start fast and run where torch is absent; one module is for training only."""
    for name, path in modules():
        if name != "data_pipeline.loader.torch" and name.startswith(("megaxf.plan", "data_pipeline")):
            heavy = {target.split(".")[0] for target in imports(path.read_text())} & {"torch", "deepspeed"}
            assert not heavy, f"{name} imports {heavy}"

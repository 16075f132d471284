"""Finds a format by its name: the name of its file in this folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

FORMATS = ("huggingface",)


def format_named(name: str) -> ModuleType:
    """The module of a format; what it has is said in `interface`. Raises ValueError where the name is unknown."""
    if name not in FORMATS:
        raise ValueError(f"{name!r} is not a format; known: {', '.join(FORMATS)}")
    return import_module(f"megaxf.convert.{name}")


def sources() -> dict[str, ModuleType]:
    """The formats that models are read from, by name."""
    return {name: module for name in FORMATS if hasattr(module := format_named(name), "read")}


def targets() -> dict[str, ModuleType]:
    """The formats that models are written to, by name."""
    return {name: module for name in FORMATS if hasattr(module := format_named(name), "write")}


def format_of(path: Path) -> str | None:
    """The name of the format that a path is in, None where it is none of them."""
    return next((name for name, module in sources().items() if module.recognises(path)), None)

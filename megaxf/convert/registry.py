"""Finds a format by its name: the name of its file in this folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

SOURCES = ("gguf", "deepspeed", "megatron", "huggingface")
TARGETS = ("huggingface", "gguf", "deepspeed", "megatron", "megatron_dist")


def format_named(name: str) -> ModuleType:
    """The module of a format; what it has is said in `interface`. Raises ValueError where the name is unknown."""
    if name not in SOURCES + TARGETS:
        raise ValueError(f"{name!r} is not a format; known: {', '.join(sorted({*SOURCES, *TARGETS}))}")
    return import_module(f"megaxf.convert.{name}")


def format_of(path: Path) -> str | None:
    """The name of the format that a path is in, None where it is none of them."""
    return next((name for name in SOURCES if format_named(name).recognises(path)), None)

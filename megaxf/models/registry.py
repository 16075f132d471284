"""Finds a model family by its name: the name of its file in this folder."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

FAMILIES = ("llama", "gpt2", "gpt_neox")


def family(name: str) -> ModuleType:
    """The module of a model family, which has `Config`, `Model` and `TENSOR_PLAN`.

    Raises ValueError where the name is unknown.
    """
    if name not in FAMILIES:
        raise ValueError(f"{name!r} is not a model family; known: {', '.join(FAMILIES)}")
    return import_module(f"megaxf.models.{name}")

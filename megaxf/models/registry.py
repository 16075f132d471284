"""Finds a model family by its name: that of its file in this folder.

<family>.py has `Model` and `TENSOR_PLAN`; <family>_config.py has `Config` and does without torch, whose import takes
seconds that planning and checking a run should not cost.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Protocol

import megaxf.models
from megaxf.plan.parameters import Shape


class ModelConfig(Shape, Protocol):
    """What the Config of every family has."""

    @property
    def family(self) -> str:
        """Name of the family."""

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence, in tokens."""

    def model_dump(self) -> dict[str, Any]:
        """All settings as plain values."""


def family(name: str) -> ModuleType:
    """The module of a model family, with `Model` and `TENSOR_PLAN`. Raises ValueError where the name is unknown."""
    _check(name)
    return import_module(f"megaxf.models.{name}")


def config_type(name: str) -> Any:
    """The `Config` of a model family. Raises ValueError where the name is unknown."""
    _check(name)
    return import_module(f"megaxf.models.{name}_config").Config


def families() -> list[str]:
    """The names of all families: whatever has both files."""
    files = [module.name for module in iter_modules(megaxf.models.__path__)]
    return [name for name in files if f"{name}_config" in files]


def _check(name: str) -> None:
    if name not in families():
        raise ValueError(f"{name!r} is not a model family; known: {', '.join(families())}")

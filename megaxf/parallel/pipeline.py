"""Pipeline parallelism: a model without the layers and ends that its stage does not hold (see megaxf.plan.stages)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from megaxf.plan.stages import Part


def stages_of_parameters(model: Any, stages: Sequence[Sequence[Part]]) -> dict[str, tuple[int, ...]]:
    """The stages that hold each parameter of a whole model; two for a table that is tied over stages."""
    modules = [_modules(model, parts) for parts in stages]
    return {
        name: tuple(stage for stage, held in enumerate(modules) if name.startswith(tuple(f"{unit}." for unit in held)))
        for name, _ in model.named_parameters()
    }


def keep_stage(model: Any, parts: Sequence[Part]) -> None:
    """Take out of a model on the meta device what the parts do not need; the rest keeps its names.

    `model.layers` then has this stage's layers only, in their order.
    """
    whole = [Part(range(len(model.layers)), True, True)]
    for name in _modules(model, whole) - _modules(model, parts):
        parent, _, key = name.rpartition(".")
        delattr(model.get_submodule(parent), key)


def _modules(model: Any, parts: Sequence[Part]) -> set[str]:
    """Names of the modules that the parts are made of."""
    (prefix,) = (name for name, module in model.named_modules() if module is model.layers)
    names = {f"{prefix}.{index}" for part in parts for index in part.layers}
    for part in parts:
        names |= set(model.before_layers) if part.first else set()
        names |= set(model.after_layers) if part.last else set()
    return names


def layers_of_parts(model: Any, parts: Sequence[Part]) -> list[list[nn.Module]]:
    """The layers of each part, from a model that `keep_stage` was applied to."""
    layers = iter(model.layers)
    return [[next(layers) for _ in part.layers] for part in parts]

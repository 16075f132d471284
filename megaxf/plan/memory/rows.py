"""What a ledger of memory is made of."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

LOSS, HEAD, LAYER, REDUCE, UPDATE = "loss", "head", "layer", "reduce", "update"
STEP = {
    LOSS: "within the loss, when logits are there",
    HEAD: "in the final norm's backward pass, with the activations of all layers",
    LAYER: "in a layer's backward pass, with what it makes again",
    REDUCE: "when the last gradients are summed over ranks",
    UPDATE: "in the optimizer's step",
}
"""The moments of a step at which the most may be held."""
PASSES, BACKWARD, APPLY = (LOSS, HEAD, LAYER), (HEAD, LAYER), (REDUCE, UPDATE)

GROUPS = {
    "weights": "what the model computes with",
    "gradients": "their sum over micro-batches",
    "optimizer": "fp32 masters and AdamW's moments",
    "activations": "what forward passes keep for backward passes",
    "loss": "logits, and the gradients that are made with them",
    "workspace": "what one layer's backward pass needs for itself",
    "buffers": "messages between ranks, and copies on their way",
    "allowance": "of libraries and the allocator: estimated, not counted",
}
"""Kinds of rows, in the order of a page."""


class Row(NamedTuple):
    """One item that a rank holds."""

    group: str
    """A key of GROUPS."""
    item: str
    bytes: int
    formula: str
    """The bytes as a product of named factors."""
    when: tuple[str, ...]
    """The moments of STEP at which it is held."""
    place: str = "device"
    """"device", "host" or "nvme"."""


Factor = int | tuple[int, str]
"""A number, or a number and what it counts."""


def row(
    group: str, item: str, *factors: Factor, over: int = 1, when: Iterable[str] = STEP, place: str = "device"
) -> Row:
    """A row of the product of the factors, divided by `over` ranks."""
    numbers = [factor if isinstance(factor, int) else factor[0] for factor in factors]
    words = ["" if isinstance(factor, int) else f" {factor[1]}" for factor in factors]
    formula = " x ".join(f"{number:,}{word}" for number, word in zip(numbers, words, strict=True))
    if over > 1:
        formula += f" / {over:,}"
    return Row(group, item, prod(numbers) // over, formula, tuple(when), place)

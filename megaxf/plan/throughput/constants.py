"""What no data sheet says: the calibrated constants, what they were fitted on, and what each software overlaps.

Fitted by benchmarks/planner_fit.py on the calibration third of the published measurements, which
benchmarks/planner_accuracy.py never scores. The split goes by `is_calibration`, a hash of the row as it is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple


def is_calibration(row: str) -> bool:
    """Whether a line of the published measurements (without its end) belongs to the third that constants are fitted
    on."""
    return int(hashlib.sha256(row.encode()).hexdigest(), 16) % 3 == 0


class Constants(NamedTuple):
    """Shares of what data sheets promise, and fixed costs; of one architecture."""

    matrices: float
    """Share of the peak that a large matrix product reaches."""
    edge: float
    """A product with an extent of so many rows, columns or terms takes twice its time."""
    attention: float
    """Share of the peak in fused attention kernels, of the products that they make."""
    memory: float
    """Share of the memory bandwidth in norms, activations and updates."""
    link: float
    """Share of the bandwidth within a node that collectives reach."""
    network: float
    """The same between nodes."""
    hop_seconds: float
    """Of a collective, for each node that it passes."""
    interference: float
    """Share of a message's time that is lost although computation goes on."""


class Software(NamedTuple):
    """What a framework does with the same hardware."""

    name: str
    factor: float = 1.0
    """Its time for computation, against the constants: the one number that is fitted for each software."""
    traffic: float = 1.0
    """Passes over memory in norms and activations, against fused ones."""
    flash: float = 1.0
    """Its attention kernel's speed, against the constant."""
    hides_tensor: float = 0.0
    """Share of the tensor-parallel messages that run beside computation."""
    hides_context: float = 0.0
    hides_data: float = 0.0
    """Of the gradients that are summed in the last backward pass."""
    hides_weights: float = 1.0
    """Of the weights that ZeRO 3 gathers, and of the gradients that it scatters."""
    hides_pipeline: float = 0.0
    scatters: bool = False
    """Whether ZeRO 1 scatters the sums of gradients; else each rank gets all of them."""
    gradient_bytes: int = 4
    """Of an element when gradients are summed over ranks."""
    waits: bool = False
    """Whether interleaved stages keep to one plan (megaxf.engine.pipeline_plan) whatever passes take."""


_COMMON = {
    "edge": 286.0, "memory": 0.725, "link": 0.726, "network": 0.566, "hop_seconds": 6.4e-6, "interference": 0.493,
}  # fmt: skip
_HOPPER = Constants(matrices=0.761, attention=0.377, **_COMMON)

CALIBRATED: Mapping[str, Constants] = {
    "ampere": Constants(matrices=0.913, attention=0.705, **_COMMON),
    "hopper": _HOPPER,
    "other": _HOPPER,
}
"""By architecture."""

_ROWS = (
    Software("megaxf", factor=1.17, traffic=2.0, hides_tensor=0.25, waits=True),
    Software("nemo", hides_tensor=1.0, hides_context=1.0, hides_data=1.0, hides_pipeline=1.0, scatters=True),
    Software("nanotron", factor=1.17, hides_data=1.0, scatters=True),
    Software("llm-foundry", factor=1.10, flash=0.509),
    Software("torchtitan", traffic=2.0),
    Software("megatron-2021", factor=0.929),
    Software("megatron-deepspeed", factor=1.15),
    Software("zero3-2021"),
)
SOFTWARE: Mapping[str, Software] = {row.name: row for row in _ROWS}
"""By name. What each overlaps is as its documentation says; a factor of 1 is NeMo's, for which there is no other, or
that of software without a row in the calibration third."""

MEGAXF = SOFTWARE["megaxf"]
"""Ours: no GPU was measured. Its factor is nanotron's, the other trainer of plain PyTorch. It sends when a pass has
ended but under ZeRO 3, and starts tensor-parallel messages of the backward pass before the gradients of weights."""

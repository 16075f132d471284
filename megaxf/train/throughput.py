"""How fast a run is, and what share of the hardware's peak that is.

    MFU = model FLOPs per token x tokens per second / (number of devices x peak FLOP/s of one device)

Model FLOPs are those that the mathematics needs (`megaxf.plan.flops.per_token`: causal attention, no recomputation),
tokens are those of all ranks together, the peak is that of dense matrix products in the run's precision (PaLM, arXiv
2204.02311). The HFU is the same with what is computed again.
"""

from __future__ import annotations

import time
from statistics import mean
from typing import NamedTuple

import torch

from megaxf.config import Run
from megaxf.models.matmul import mm
from megaxf.parallel.collectives import barrier, gather_objects
from megaxf.parallel.mesh import Mesh
from megaxf.plan.flops import hardware_per_sequence, per_token
from megaxf.plan.hardware import peak_flops

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Peak(NamedTuple):
    """Peak FLOP/s of one device and where that number is from."""

    flops: float
    origin: str


def flops_per_token(run: Run, sequence_length: int) -> float:
    """Model FLOPs of training on one token of such a sequence."""
    return per_token(run.model, sequence_length)


def hardware_flops_per_token(run: Run, sequence_length: int) -> float:
    """The same with what the run computes again."""
    train, length = run.train, sequence_length
    again = {"dropout": train.dropout > 0, "fused": train.attention_backend == "sdpa"}
    return hardware_per_sequence(run.model, length, train.recompute, train.recompute_every, **again) / length


def find_peak(run: Run, mesh: Mesh, device: torch.device) -> Peak:
    """The peak as set, else from the table of GPUs, else measured on all ranks at once; collective."""
    if run.metrics.peak_tflops is not None:
        return Peak(run.metrics.peak_tflops * 1e12, "as set")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if known := peak_flops(name, _table_dtype(run.train.precision)):
        return Peak(known, f"{name}, by its maker")
    barrier(mesh)
    measured = gather_objects(measure_matmul(DTYPES[run.train.precision], device), mesh)
    return Peak(mean(measured), "measured matrix product")


def _table_dtype(precision: str) -> str:
    if precision != "fp32":
        return "bf16"  # The peak of fp16 is the same wherever there is bf16.
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def measure_matmul(dtype: torch.dtype, device: torch.device, seconds: float = 0.5) -> float:
    """FLOP/s of the fastest of several square matrix products, with this process' threads."""
    size = 1024 if device.type == "cpu" else 8192
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    mm(left, right)
    while best == float("inf") or time.perf_counter() < end:
        started = time.perf_counter()
        mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best

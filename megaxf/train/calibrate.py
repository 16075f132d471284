"""Measures a machine for the planner: matrix products, attention, memory, messages, and four training steps.

    machine = calibrate(mesh, device, "bf16")       # collective: all ranks at once, as in a run
    write_profile(Path("profile.json"), machine)

The operators give the shape of the model, the steps its levels: in a wide one, a narrow one and one of many heads,
products, what memory bounds and attention take other shares of the time, which tells how much slower each is in a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import lsq_linear

from megaxf.config import Run, validate
from megaxf.engine import TorchBatch, create, micro_batches
from megaxf.models.attention import attention
from megaxf.models.matmul import mm
from megaxf.parallel.collectives import barrier, gather_objects
from megaxf.parallel.mesh import Axis, Mesh, subaxis
from megaxf.plan.flops import visible_pairs
from megaxf.plan.throughput.collectives import reduce_bytes
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.operators import BLOCK, FLASH_BACKWARD
from megaxf.plan.throughput.page import KINDS
from megaxf.plan.throughput.step import predict
from megaxf.train.throughput import DTYPES

SHAPES = {
    "cpu": ((1024, 1024, 1024), (2048, 512, 512), (2048, 256, 704), (1024, 1024, 128), (256, 256, 256)),
    "cuda": ((8192, 8192, 8192), (8192, 4096, 14336), (8192, 4096, 1024), (2048, 2048, 2048), (1024, 8192, 512)),
}
"""Rows, inner extent and columns of the products, the largest first."""
HEADS, HEAD_DIM = 8, {"cpu": 64, "cuda": 128}
LENGTH = {"cpu": 512, "cuda": 8192}
"""Of the sequences in attention and in the step."""
STREAM = {"cpu": 2**24, "cuda": 2**29}
"""Bytes of what is read and written to measure memory, and of a large message."""
MODEL = {
    "cpu": {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4},
    "cuda": {"vocab_size": 32768, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4},
}
"""Of the first step; heads of HEAD_DIM."""
WIDE = {
    "cpu": {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 2},
    "cuda": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 1},
}
"""Changes for one of whose time products take a larger share."""
NARROW = {
    "cpu": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 8},
    "cuda": {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8},
}
"""The same for what memory bounds."""
HEADS_MORE = {"cpu": {"num_attention_heads": 16, "head_dim": 64}, "cuda": {"num_attention_heads": 64, "head_dim": 128}}
"""The same for attention, at the same length: kernels block queries by it."""
SLOWEST, FASTEST = 20.0, 0.5
"""Bounds of a level, as time in a step over time alone: noisy times may not give a speed that makes no sense."""


def calibrate(mesh: Mesh, device: torch.device, precision: str, local_ranks: int) -> Hardware:
    """The machine as `--profile` takes it; collective.

    precision: of the run, "bf16" or "fp32". local_ranks: ranks on this host.
    """
    kind, dtype = device.type, DTYPES[precision]
    peak, edge = _products(SHAPES[kind], dtype, device)
    link, network, hop = _messages(mesh, device, local_ranks)
    machine = Hardware(
        name=torch.cuda.get_device_name(device) if kind == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        peaks={precision: peak},
        memory=_memory(device),
        memory_bandwidth=_copies(device),
        node_size=local_ranks,
        link_bandwidth=link,
        network_bandwidth=network,
        measured={
            "matrices": 1.0,
            "edge": edge,
            "attention": _attention(dtype, device) / peak,
            "memory": 1.0,
            "link": 1.0,
            "network": 1.0,
            "hop_seconds": hop,
        },
    )
    slower = _levels(machine, mesh, device, precision)
    scaled = {name: machine.measured[name] / factor for name, factor in slower.items()}
    return replace(machine, measured={**machine.measured, **scaled})


def step_seconds(run: Run[Any], mesh: Mesh, device: torch.device, rounds: int = 5) -> float:
    """Median seconds of a training step on random tokens; collective."""
    engine, length = create(run, mesh, device), run.data.sequence_length
    own = run.train.global_batch_size // mesh.data_size
    ids = torch.randint(run.model.vocab_size, (own, length + 1), device=device)
    batch = micro_batches(TorchBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), run.train.micro_batch_size)
    return seconds(lambda: engine.train_step(batch, 1e-4), device, rounds, mesh)


def seconds(work: Callable[[], Any], device: torch.device, rounds: int = 7, mesh: Mesh | None = None) -> float:
    """Median of a piece of work; collective where a mesh is given, whose ranks then start together."""
    found = []
    for number in range(rounds + 2):
        if mesh is not None:
            barrier(mesh)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number >= 2:
            found.append(time.perf_counter() - started)
    return statistics.median(found)


def _products(shapes: Any, dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """(FLOP/s of large products, the extent at which a product takes twice its time)."""
    times = []
    for rows, inner, columns in shapes:
        left, right = (torch.ones(size, dtype=dtype, device=device) for size in ((rows, inner), (inner, columns)))
        times.append(seconds(lambda left=left, right=right: mm(left, right), device))  # type: ignore[misc]
    sizes = np.array(shapes, float)
    slowness = np.log(np.array(times) / (2 * sizes.prod(axis=1)))
    trials = []
    for edge in np.geomspace(1, 1000, 61):
        rest = slowness - np.log1p(edge / sizes).sum(axis=1)
        trials.append((float(rest.std()), float(np.exp(-rest.mean())), float(edge)))
    _, peak, edge = min(trials)
    return peak, edge


def _attention(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of attention forward and backward, of the products that are made."""
    length, head_dim = LENGTH[device.type], HEAD_DIM[device.type]
    q, k, v = (torch.randn(1, length, HEADS, head_dim, dtype=dtype, device=device, requires_grad=True) for _ in "qkv")
    # A gradient as the next layer gives it: that of a sum, one number seen everywhere, takes a slower way.
    gradient = torch.randn_like(q)
    taken = seconds(lambda: attention(q, k, v).backward(gradient), device)
    made = 4 * HEADS * head_dim * (visible_pairs(length) + length * BLOCK / 2)
    return (1 + FLASH_BACKWARD) * made / taken


def _copies(device: torch.device) -> float:
    """Bytes/s of a sum in place: two reads and a write."""
    left, right = (torch.ones(STREAM[device.type] // 4, device=device) for _ in range(2))
    return 3 * STREAM[device.type] / seconds(lambda: left.add_(right), device)


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    import psutil

    return float(psutil.virtual_memory().total)


def _messages(mesh: Mesh, device: torch.device, local_ranks: int) -> tuple[float, float | None, float]:
    """(bytes/s within the host, bytes/s of a rank to other hosts, seconds of an empty message)."""
    axis = mesh.everyone
    if axis.size == 1:
        return _copies(device), None, 0.0
    speed, hop = _ring(axis, mesh, device)
    if local_ranks in (1, axis.size):
        return speed, (speed if local_ranks == 1 else None), hop
    local = subaxis(axis, local_ranks)
    return _ring(local, mesh, device)[0], speed / local_ranks, hop


def _ring(axis: Axis, mesh: Mesh, device: torch.device) -> tuple[float, float]:
    """(bytes/s of an all-reduce's ring, seconds of one that sends nothing much)."""
    large, small = (torch.zeros(count, device=device) for count in (STREAM[device.type] // 4, 1))
    whole, start = (
        seconds(lambda x=x: dist.all_reduce(x, group=axis.group), device, mesh=mesh)  # type: ignore[misc]
        for x in (large, small)
    )
    return reduce_bytes(STREAM[device.type], axis.size) / max(whole - start, 1e-9), start


def _levels(machine: Hardware, mesh: Mesh, device: torch.device, precision: str) -> dict[str, float]:
    """Time in training steps over that of the operators alone, by the names in `Hardware.measured`; collective."""
    kind, ranks = device.type, mesh.world_size
    rows = []
    for change in ({}, WIDE[kind], NARROW[kind], HEADS_MORE[kind]):
        run = reference_run(kind, precision, ranks, **change)
        computed, messages = _shares(run, machine, ranks)
        taken = statistics.mean(gather_objects(step_seconds(run, mesh, device), mesh))
        # All steps weigh the same: each row is shares of its step, whose sum is one.
        rows.append(np.array(list(computed.values())) / max(taken - messages, 0.1 * sum(computed.values())))
    found = lsq_linear(np.array(rows), np.ones(len(rows)), bounds=(FASTEST, SLOWEST)).x
    return dict(zip(computed, map(float, found), strict=True))


def _shares(run: Run[Any], machine: Hardware, ranks: int) -> tuple[dict[str, float], float]:
    """Predicted seconds of a step: of computation, by what sets their speed; of the rest."""
    step = predict(layout(run, ranks), machine)
    total = sum(float(step.items[name]) for name in (*KINDS["computation"], *KINDS["update"]))
    attention = float(step.items["attention"])
    unbound = replace(machine, measured={**machine.measured, "memory": 1e9})
    without = predict(layout(run, ranks), unbound).items
    matrices = sum(float(without[name]) for name in ("matrix products", "output matrix and loss"))
    computed = {"matrices": matrices, "attention": attention, "memory": total - attention - matrices}
    return computed, float(step.seconds) - total


def reference_run(kind: str, precision: str, ranks: int, **change: Any) -> Run[Any]:
    """A small run on random tokens, data-parallel over all ranks. change: settings of its model."""
    size = MODEL[kind] | change
    heads = size["hidden_size"] // HEAD_DIM[kind]
    model = {"num_attention_heads": heads, "max_position_embeddings": LENGTH[kind], **size}
    return validate(
        {
            "run_folder": "unused",
            "model": model,
            "data": {"sources": {"random": {"folder": "unused"}}, "sequence_length": LENGTH[kind]},
            "train": {"steps": 1, "global_batch_size": 4 * ranks, "micro_batch_size": 2, "precision": precision},
            "optimizer": {"learning_rate": 1e-4},
            "engine": {"zero_stage": 0},
        },
        "calibration",
    )

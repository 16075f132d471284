"""What a step has to do and how it is cut: the question to `megaxf.plan.throughput.step.predict`.

A field that says "or array" may hold a value for each of many layouts; arrays have one length, and answers have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megaxf.plan.flops import head_per_sequence, layer_per_sequence
from megaxf.plan.parameters import Shape, layer_matrices
from megaxf.plan.stages import split_layers

Count = Any
"""An int, or an array of them."""

REMADE: Mapping[str, tuple[float, float, float]] = {
    "none": (0, 0, 0),
    "selective": (0, 0, 0.3),
    "full": (1, 1, 1),
    "whole layer": (1, 1, 1),
    "attention": (0, 1, 0),
    "every second product": (0.5, 0, 1),
}
"""`train.recompute` -> the shares of a forward pass that the backward pass makes again: of matrix products, of
attention, of norms and activations. "selective" makes norms and SwiGLU again, "full" all but the layer's last product.
Of others: the whole layer; the attention core (arXiv 2205.05198); TorchTitan's choice by operators."""


@dataclass(frozen=True)
class Layout:
    """Fields that a run has too are named and explained as there."""

    shape: Shape
    sequence_length: int
    world_size: Count
    global_batch_size: Count
    """Or array."""
    micro_batch_size: Count = 1
    """Or array."""
    tensor_parallel_size: Count = 1
    """Or array."""
    sequence_parallel: Any = False
    """Or array."""
    context_parallel_size: Count = 1
    """Or array."""
    pipeline_parallel_size: Count = 1
    """Or array."""
    pipeline_schedule: Any = "1f1b"
    """Or array."""
    virtual_stages: Count | None = None
    """Parts that a stage holds; by default those of the schedule. Or array."""
    stage_layers: tuple[int, int] | None = None
    """The most layers of a stage, and those of the stage with the head; by default as the trainer balances them."""
    zero_stage: Count = 1
    """Or array."""
    recompute: Any = "none"
    """A key of REMADE, or array of them."""
    recompute_every: Count = 1
    precision: str = "bf16"
    attention_backend: str = "sdpa"
    """"reference" makes all scores, and writes them to memory."""
    compile: bool = False
    order: Sequence[str] = ("pipeline", "data", "context", "tensor")

    @property
    def element(self) -> int:
        """Bytes of a weight and of an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def data_parallel_size(self) -> Count:
        """Ranks along the data axis."""
        degrees = self.tensor_parallel_size * self.context_parallel_size * self.pipeline_parallel_size
        return self.world_size // degrees

    @property
    def replicas(self) -> Count:
        """Ranks that hold the same weights."""
        return self.data_parallel_size * self.context_parallel_size

    @property
    def micro_batches(self) -> Count:
        """Forward passes of a rank in a step."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property
    def tokens(self) -> Count:
        """Of a micro-batch on one rank."""
        return self.micro_batch_size * self.sequence_length / self.context_parallel_size

    @property
    def parts(self) -> Count:
        """Parts that a stage holds."""
        if self.virtual_stages is not None:
            return self.virtual_stages
        return np.where(np.asarray(self.pipeline_schedule) == "1f1b", 1, 2)

    def remade(self) -> tuple[Any, Any, Any]:
        """The shares of REMADE, of all layers."""
        if isinstance(self.recompute, str):
            shares = np.array(REMADE[self.recompute], float)
        else:
            shares = np.array([REMADE[mode] for mode in self.recompute], float).T
        layers = self.shape.num_hidden_layers
        chosen = -(-layers // self.recompute_every) / layers
        matrices, attention, activations = shares
        last = self.shape.hidden_size * self.shape.intermediate_size / layer_matrices(self.shape)
        matrices = matrices - last * (np.asarray(self.recompute) == "full")
        return matrices * chosen, attention * chosen, activations * chosen

    def layers(self) -> tuple[Any, Any]:
        """(the most layers of a stage without the head, those of the stage with it); both all of them on one stage."""
        everything, stages = self.shape.num_hidden_layers, np.asarray(self.pipeline_parallel_size)
        if self.stage_layers is not None:
            return self.stage_layers
        length = self.sequence_length
        head = head_per_sequence(self.shape, length) / layer_per_sequence(self.shape, length)
        return balanced(everything, stages, head, np.asarray(self.parts))


def balanced(layers: int, stages: Any, head: float, least: Any = 1) -> tuple[Any, Any]:
    """Layers of (the fullest stage without the head, the stage with it) where the slowest stage is as fast as can be.

    head: its cost, in layers. least: layers that each stage has to take. As `megaxf.plan.stages.balance`, in closed
    form: the slowest stage is one of n layers without the head, or the one of x with it; each as few as leave room for
    all on the others.
    """
    others = np.maximum(stages - 1, 1)
    x = np.maximum(-(-(layers - others * np.floor(head)) // stages), least)
    beside = np.maximum(-(-(layers + np.ceil(head)) // stages) - np.ceil(head), least)
    n = np.maximum(-(-(layers - beside) // others), least)
    last = np.where(x + head < np.maximum(n, beside + head), x, beside)
    ordinary = np.maximum(-(-(layers - last) // others), least)
    return np.where(stages == 1, layers, ordinary), np.where(stages == 1, layers, last)


def layout(run: Any, world_size: int) -> Layout:
    """Of a megaxf.config.Run over `world_size` ranks, which it has to fit."""
    train, parallel = run.train, run.parallel
    stages = split_layers(run)
    counts = [sum(len(part.layers) for part in parts) for parts in stages]
    head = next(index for index, parts in enumerate(stages) if any(part.last for part in parts))
    others = [count for index, count in enumerate(counts) if index != head] or counts
    return Layout(
        shape=run.model,
        sequence_length=run.data.sequence_length,
        world_size=world_size,
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        tensor_parallel_size=parallel.tensor_parallel_size,
        sequence_parallel=parallel.sequence_parallel,
        context_parallel_size=parallel.context_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        pipeline_schedule=parallel.pipeline_schedule,
        stage_layers=(max(others), counts[head]),
        zero_stage=run.engine.zero_stage,
        recompute=train.recompute,
        recompute_every=train.recompute_every,
        precision=train.precision,
        attention_backend=train.attention_backend,
        compile=train.compile,
        order=tuple(parallel.order),
    )

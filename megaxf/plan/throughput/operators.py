"""Seconds of computation on one rank: a roofline for each kind of operator. All arguments may be arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.flops import visible_pairs
from megaxf.plan.throughput.constants import Constants, Software
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import Layout

BLOCK = 128
"""Keys of a block in fused attention kernels, which skip whole blocks only."""
FLASH_BACKWARD = 2.5
"""Products of its backward pass against those of its forward pass: five against two (arXiv 2307.08691)."""
STREAM_PASSES, STREAM_PASSES_FORWARD = 22, 10
"""Elements read and written a layer, token and hidden dimension: two norms (2 forward, 3 backward each) and two sums (3
each way)."""
WIDTH_PASSES, WIDTH_PASSES_FORWARD = 8, 3
"""The same for SwiGLU, a token and intermediate dimension."""
GELU_PASSES, GELU_PASSES_FORWARD = 6, 2
"""The same for the GELU, with the gradient of the bias before it."""
ROTARY_PASSES, ROTARY_PASSES_FORWARD = 4, 2
"""The same for rotary embeddings, a token and dimension of q and k."""
SCORE_PASSES, SCORE_PASSES_FORWARD = 15, 6
"""The same for attention that writes its scores, a score: scale, mask, softmax, dropout."""
LOSS_BYTES = 22
"""Bytes read and written a logit: 16-bit logits and their gradients, fp32 copies, softmax, gradients."""
UPDATE_BYTES = 38
"""Bytes read and written a parameter: fp32 gradient twice (norm, update), master and moments both ways, weight; and the
gradient's clearing."""


class Passes(NamedTuple):
    """Seconds of one micro-batch in one layer, forward and backward."""

    matrices: Any
    attention: Any
    activations: Any
    forward: tuple[Any, Any, Any]
    """Of the forward pass, the same three."""


class Machine(NamedTuple):
    """Speeds that operators reach."""

    flops: float
    """Of large matrix products."""
    edge: float
    attention: float
    """FLOP/s of fused attention."""
    memory: float
    """Bytes a second."""


def machine(layout: Layout, hardware: Hardware, software: Software, constants: Constants) -> Machine:
    """The speeds of a rank."""
    peak = hardware.peak(layout.precision) / software.factor
    return Machine(
        peak * constants.matrices,
        constants.edge,
        peak * constants.attention * software.flash,
        hardware.memory_bandwidth * constants.memory / software.factor,
    )


def product(rows: Any, inner: Any, columns: Any, speed: Machine, element: int) -> Any:
    """A matrix product [rows, inner] x [inner, columns]: arithmetic, or memory where that is slower."""
    edges = (1 + speed.edge / rows) * (1 + speed.edge / inner) * (1 + speed.edge / columns)
    traffic = element * (rows * inner + inner * columns + rows * columns)
    return np.maximum(2 * rows * inner * columns * edges / speed.flops, traffic / speed.memory)


def layer(layout: Layout, speed: Machine, software: Software) -> Passes:
    """One decoder layer, as one tensor-parallel rank computes its part of it."""
    shape, ranks, tokens, element = layout.shape, layout.tensor_parallel_size, layout.tokens, layout.element
    hidden, width = shape.hidden_size, shape.intermediate_size / ranks
    queries = shape.num_attention_heads * shape.head_dim / ranks
    keys = np.maximum(shape.num_key_value_heads / ranks, 1) * shape.head_dim
    into, rotary = shape.structure.mlp_matrices - 1, shape.structure.rotary
    forward = sum(
        product(tokens, inner, columns, speed, element)
        for inner, columns in ((hidden, queries + 2 * keys), (queries, hidden), (hidden, into * width), (width, hidden))
    )
    attention_forward, attention = attend(layout, queries, speed)
    stream = tokens * hidden / np.where(layout.sequence_parallel, ranks, 1)
    each = element * (1.0 if layout.compile else software.traffic) / speed.memory
    rotated, inside = tokens * (queries + keys) * rotary, tokens * width
    passes, passes_forward = (WIDTH_PASSES, WIDTH_PASSES_FORWARD) if into == 2 else (GELU_PASSES, GELU_PASSES_FORWARD)
    activations = STREAM_PASSES * stream + passes * inside + ROTARY_PASSES * rotated
    once = STREAM_PASSES_FORWARD * stream + passes_forward * inside + ROTARY_PASSES_FORWARD * rotated
    return Passes(3 * forward, attention, each * activations, (forward, attention_forward, each * once))


def attend(layout: Layout, queries: Any, speed: Machine) -> tuple[Any, Any]:
    """(forward, forward and backward) of scores, softmax and values; queries: dimensions of a rank's query heads."""
    shape, length = layout.shape, layout.sequence_length
    share = layout.micro_batch_size / layout.context_parallel_size
    if layout.attention_backend == "reference":
        scores = share * length * length * queries / shape.head_dim
        products = 4 * scores * shape.head_dim * (1 + speed.edge / shape.head_dim) * (1 + speed.edge / length) ** 2
        each = layout.element * scores / speed.memory
        forward = products / speed.flops + SCORE_PASSES_FORWARD * each
        return forward, 3 * products / speed.flops + SCORE_PASSES * each
    seen = visible_pairs(length, shape.sliding_window) + length * BLOCK / 2
    forward = 4 * share * seen * queries / speed.attention
    return forward, (1 + FLASH_BACKWARD) * forward


def head(layout: Layout, speed: Machine) -> Any:
    """The output matrix and the loss of one micro-batch, forward and backward."""
    shape = layout.shape
    words = shape.vocab_size / layout.tensor_parallel_size
    products = 3 * product(layout.tokens, shape.hidden_size, words, speed, layout.element)
    return products + LOSS_BYTES * layout.tokens * words / speed.memory


def update(parameters: Any, speed: Machine) -> Any:
    """The optimizer's step over a rank's share of the parameters, with the norm of the gradients."""
    return UPDATE_BYTES * parameters / speed.memory

"""What each of many layouts needs at the least: cheap, and never more than the ledger of megaxf.plan.memory says."""

from __future__ import annotations

from typing import Any

import numpy as np

from megaxf.plan.memory.activations import layer_terms
from megaxf.plan.memory.job import Job
from megaxf.plan.memory.ledger import COMMUNICATOR, CONTEXT, FRAGMENTATION, MATRIX_WORKSPACE
from megaxf.plan.memory.zero import LIVE
from megaxf.plan.parameters import layer_matrices
from megaxf.plan.throughput.layout import Layout


def least_bytes(layout: Layout) -> Any:
    """Of a rank of the first pipeline stage, in a backward pass: states, activations, allowances.

    layout: its fields are arrays.
    """
    layers = _layers(layout)
    counted = _states(layout, layers) + _held(layout, layers) * _layer_bytes(layout)
    sizes = (layout.tensor_parallel_size, layout.context_parallel_size, layout.replicas, layout.pipeline_parallel_size)
    groups = sum((np.asarray(size) > 1) * 1 for size in sizes)
    return counted * (1 + 1 / FRAGMENTATION) + CONTEXT + MATRIX_WORKSPACE + COMMUNICATOR * groups


def _layers(layout: Layout) -> Any:
    """The fewest layers that the first stage may have; with `dualpipev` it is the last one too."""
    stages, everything = np.asarray(layout.pipeline_parallel_size), layout.shape.num_hidden_layers
    most, last = layout.layers()
    others = (everything - last) // np.maximum(stages - 1, 1)
    few = np.where(layout.pipeline_schedule == "dualpipev", np.maximum(everything - (stages - 1) * most, 0), others)
    return np.where(stages == 1, everything, few)


def _held(layout: Layout, layers: Any) -> Any:
    """Layers x micro-batches of which activations are kept: megaxf.plan.stages.in_flight of stage 0."""
    stages, count, name = layout.pipeline_parallel_size, layout.micro_batches, layout.pipeline_schedule
    first, second = (layers + 1) // 2, layers // 2
    entered = np.minimum(3 * stages - 1, 2 * count)
    behind = np.clip(entered - stages, 0, stages)
    both = np.where(name == "dualpipev", 2 * stages * first + second, (entered - behind) * first + behind * second)
    return np.where(name == "1f1b", np.minimum(count, stages) * layers, both)


def _states(layout: Layout, layers: Any) -> Any:
    """Weights, gradients, masters and moments, by the table of megaxf.plan.memory.states.

    Gradients of stage 0 may be 16-bit ones; stage 3 keeps gathered weights beside its shares.
    """
    shape, zero, low = layout.shape, layout.zero_stage, layout.element
    tables = np.where((layout.pipeline_parallel_size == 1) & (not shape.tie_word_embeddings), 2, 1)
    elements = layers * layer_matrices(shape) + tables * shape.vocab_size * shape.hidden_size
    elements = elements / layout.tensor_parallel_size
    alone = 8 + (4 if low == 2 else 0)
    whole = np.choose(zero, [low + alone, low + 4 * (low == 2), low, 0])
    cut = np.choose(zero, [0, 12, 16 if low == 2 else 12, low + 16])
    return elements * (whole + cut / layout.replicas) + (zero == 3) * low * np.minimum(LIVE, elements)


def _layer_bytes(layout: Layout) -> Any:
    """What a layer keeps of one micro-batch, counted once for each way to cut it."""
    rows = zip(
        layout.tensor_parallel_size.tolist(),
        layout.sequence_parallel.tolist(),
        layout.context_parallel_size.tolist(),
        layout.micro_batch_size.tolist(),
        layout.recompute.tolist(),
        strict=True,
    )
    known: dict[Any, int] = {}
    return np.array([known.get(row) or known.setdefault(row, _one(layout, *row)) for row in rows], float)


def _one(layout: Layout, tensor: int, sequence: bool, context: int, micro: int, recompute: str) -> int:
    job = Job(
        layout.shape,
        layout.sequence_length,
        micro,
        parts=(),
        precision=layout.precision,
        compile=layout.compile,
        tensor_parallel_size=tensor,
        sequence_parallel=sequence,
        context_parallel_size=context,
    )
    return sum(layer_terms(job, recompute).values())

"""Weights, gradients and optimizer state of one rank, and the buffers that they pass through.

Bytes a parameter with r replicas, in bf16 (the method of arXiv 1910.02054; what is cut is filled up):

    zero_stage   weights   gradients   masters   moments
    0            2         4           4         8
    1            2         4           4 / r     8 / r
    2            2         4 / r       4 / r     8 / r
    3            2 / r     4 / r       4 / r     8 / r

Gradients are summed in fp32. In fp32 weights take 4, and at stage 0 they are their own masters. What the engines hold
was measured with torch 2.13 and DeepSpeed 0.19.8 (tests/engine/test_memory_states.py), scalars such as AdamW's counters
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from megaxf.plan.memory.job import Job
from megaxf.plan.memory.rows import APPLY, PASSES, REDUCE, UPDATE, Row, row
from megaxf.plan.memory.weights import Weight, borrowed_table, held_weights
from megaxf.plan.memory.zero import zero1_rows, zero3_rows, zero12_rows

REFERENCE_BUCKET = 2**25
"""Elements in one message of the reference engine (megaxf.engine.gradient)."""


def published_state_bytes(parameters: int, replicas: int, zero_stage: int) -> float:
    """Weights, gradients and Adam in mixed precision with 2-byte gradients (ZeRO, arXiv 1910.02054, section 3)."""
    cut = {0: 0, 1: 12, 2: 14, 3: 16}[zero_stage]
    return parameters * (16 - cut + cut / replicas)


def state_rows(job: Job) -> list[Row]:
    """Weights, gradients, optimizer state and their buffers."""
    weights = held_weights(job)
    rows = list(_LEDGERS[job.zero_stage](job, weights))
    if table := borrowed_table(job):
        rows.append(row("weights", "copy of the tied table", job.element, (table.elements, "parameters")))
        rows.append(row("gradients", "of the copy", 4, (table.elements, "parameters")))
    return rows


def _reference(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 0: everything whole on every rank."""
    elements, low = sum(weight.elements for weight in weights), job.element
    count = elements, "parameters"
    yield row("weights", "weights", low, count)
    if low == 2:
        yield row("optimizer", "masters", 4, count)
    yield row("optimizer", "moments", 8, count)
    # A gradient that has nothing to be added to stays as narrow as it was made, until it is sent or used.
    alone = job.micro_batches == 1
    narrow = low == 2 and alone and job.replicas == 1
    if job.micro_batches > 1:
        yield row("gradients", "gradients so far", low if job.micro_batches == 2 else 4, count, when=PASSES)
    yield row("gradients", "gradients", 2 if narrow else 4, count, when=APPLY)
    if narrow and not job.compile:
        yield row("buffers", "gradients in fp32", 4, count, when=(UPDATE,))
    if job.replicas > 1:
        message = min(elements, max(REFERENCE_BUCKET, *(weight.elements for weight in weights)))
        each = 6 if alone and low == 2 else 4
        yield row("buffers", "gradient all-reduce", each, (message, "elements of a message"), when=(REDUCE,))


_LEDGERS: Sequence[Callable[[Job, Sequence[Weight]], Iterator[Row]]] = (
    _reference,
    zero1_rows,
    zero12_rows,
    zero3_rows,
)
"""By zero_stage."""

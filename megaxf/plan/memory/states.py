"""Weights, gradients and optimizer state of one rank, and the buffers that they pass through.

Bytes a parameter with r replicas, in bf16 (the method of arXiv 1910.02054; what is cut is filled up):

    zero_stage   weights   gradients   masters   moments
    0            2         4           4         8
    1            2         4           4 / r     8 / r
    2            2         4 / r       4 / r     8 / r
    3            2 / r     4 / r       4 / r     8 / r

Gradients are summed in fp32. In fp32 weights take 4, and at stage 0 they are their own masters. What the engines hold
was measured with torch 2.13 and DeepSpeed 0.19.8 (tests/engine/test_memory_states.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from megaxf.plan.memory.job import Job
from megaxf.plan.memory.rows import APPLY, BACKWARD, PASSES, REDUCE, STEP, UPDATE, Row, row
from megaxf.plan.memory.weights import Weight, borrowed_table, held_weights

REFERENCE_BUCKET = 2**25
"""Elements in one message of the reference engine (megaxf.engine.gradient)."""
ZERO_BUCKET = 2**26
"""Elements in one message of ZeRO (megaxf.engine.deepspeed_config)."""
FALLBACK_BUCKET = 500_000_000
"""Elements after which DeepSpeed's bf16 optimizer sends a message; not ours to set."""
LIVE = 1_000_000_000
"""Elements of whole weights that stage 3 keeps for their next use (DeepSpeed's max_live_parameters)."""
COUNTER = 4
"""Bytes of AdamW's count of steps, one for each tensor that it updates."""


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
    yield row("optimizer", "counters", COUNTER, (len(weights), "tensors"))
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


def _zero1(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 1: DeepSpeed's BF16_Optimizer; in other precisions its DeepSpeedZeroOptimizer."""
    if job.precision != "bf16":
        yield from _zero12(job, weights)
        return
    groups = [_filled(sum(group), 2 * job.replicas) for group in _decay_groups(weights)]
    yield from _cut_states(job, sum(groups), 1, len(groups))
    yield row("gradients", "gradients", 4, (sum(groups), "parameters"))
    if job.replicas > 1 and groups[0] <= FALLBACK_BUCKET:
        # A larger group is a message by itself, and is sent from where it lies.
        yield row("buffers", "gradient all-reduce", 4, (sum(groups), "elements of a message"), when=(REDUCE,))


def _zero12(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 2, and stage 1 but in bf16: DeepSpeedZeroOptimizer."""
    members, r, low = _decay_groups(weights), job.replicas, job.element
    groups = [_filled(sum(group), 2 * r) for group in members]
    yield from _cut_states(job, sum(groups), 1, len(groups))
    held: Collection[str] = STEP
    if job.zero_stage == 1:
        elements = sum(weight.elements for weight in weights), "parameters"
        passes = BACKWARD if job.micro_batches == 1 else PASSES
        yield row("gradients", "gradients", 4, elements, when=(*passes, REDUCE))
        held = APPLY
    if low == 2:
        yield row("gradients", "gradient shares", 4, (sum(groups), "parameters"), over=r, when=held)
    else:
        reached = _reached(members, groups, r), "parameters of weights that lie in the share"
        yield row("gradients", "gradient shares", 4, reached, when=held)
        yield row("buffers", "gradient shares, flat", 4, (max(groups), "parameters of a group"), over=r, when=(UPDATE,))
    bucket, message, sent = _zero_bucket(weights)
    yield row("buffers", "gradient bucket", low, (bucket, "elements"), when=(*BACKWARD, REDUCE))
    yield row("buffers", "gradient bucket, flat", low, (bucket, "elements"), when=sent)
    if low == 2:
        yield row("buffers", "gradient reduction in fp32", 4, (message, "elements of a message"), when=sent)


def _zero3(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 3: DeepSpeedZeroOptimizer_Stage3. Each weight is filled up by itself."""
    r, low = job.replicas, job.element
    shares = [[-(-elements // r) for elements in group] for group in _decay_groups(weights)]
    share = sum(map(sum, shares))
    yield from _cut_states(job, share * r, r, len(shares))
    yield row("gradients", "gradient shares", 4, (share * r, "parameters"), over=r)
    gathered = min(LIVE, sum(weight.elements for weight in weights))
    yield row("buffers", "gathered weights", low, (gathered, "parameters"), when=PASSES)
    bucket, message, sent = _zero_bucket(weights)
    yield row("buffers", "gradient bucket", 4, (bucket, "elements"))
    yield row("buffers", "gradient reduction", 4, (message, "elements of a message"), when=sent)
    flat = max(map(sum, shares)), "parameters of a group's share"
    yield row("buffers", "gradient shares, flat", 4, flat, when=(UPDATE,))


_LEDGERS: dict[int, Callable[[Job, Sequence[Weight]], Iterator[Row]]] = dict(
    enumerate((_reference, _zero1, _zero12, _zero3))
)


def _decay_groups(weights: Sequence[Weight]) -> list[list[int]]:
    """Elements of the weights of the optimizer's groups: of those that decay, and of the rest."""
    groups = [[weight.elements for weight in weights if weight.is_matrix is decays] for decays in (True, False)]
    return [group for group in groups if group]


def _cut_states(job: Job, filled: int, weights_over: int, groups: int) -> Iterator[Row]:
    """Weights, masters and moments under ZeRO. filled: parameters with what they are filled up by."""
    count = filled, "parameters"
    yield row("weights", "weights", job.element, count, over=weights_over)
    yield row("optimizer", "masters", 4, count, over=job.replicas, place=_place(job))
    yield row("optimizer", "moments", 8, count, over=job.replicas, place=_place(job))
    yield row("optimizer", "counters", COUNTER, (groups, "groups"))


def _place(job: Job) -> str:
    return {"none": "device", "cpu": "host", "nvme": "nvme"}[job.offload_optimizer]


def _reached(members: Sequence[Sequence[int]], groups: Sequence[int], replicas: int) -> int:
    """Elements of the weights of which a part lies in a rank's share, on the rank that has the most."""
    counts = [0] * replicas
    for group, filled in zip(members, groups, strict=True):
        share, start = filled // replicas, 0
        for elements in group:
            for rank in range(start // share, (start + elements - 1) // share + 1):
                counts[rank] += elements
            start += elements
    return max(counts)


def _zero_bucket(weights: Sequence[Weight]) -> tuple[int, int, tuple[str, ...]]:
    """Elements of ZeRO's bucket and of its longest message, since a larger weight is sent alone; and when it is sent:
    once full, or with all gradients in it at the end."""
    elements = sum(weight.elements for weight in weights)
    bucket = min(ZERO_BUCKET, elements + elements % 2)
    message = max(bucket, *(weight.elements for weight in weights))
    return bucket, message, (REDUCE,) if elements <= bucket else (*BACKWARD, REDUCE)


def _filled(elements: int, unit: int) -> int:
    return -(-elements // unit) * unit

"""What ZeRO holds (arXiv 1910.02054) as DeepSpeed's optimizers allocate it, with its padding and its buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from megaxf.plan.memory.job import Job
from megaxf.plan.memory.rows import APPLY, BACKWARD, PASSES, REDUCE, STEP, UPDATE, Row, row
from megaxf.plan.memory.weights import Weight

ZERO_BUCKET = 2**26
"""Elements in one message of ZeRO (megaxf.engine.deepspeed_config)."""
FALLBACK_BUCKET = 500_000_000
"""Elements after which DeepSpeed's bf16 optimizer sends a message; not ours to set."""
LIVE = 1_000_000_000
"""Elements of whole weights that stage 3 keeps for their next use (DeepSpeed's max_live_parameters)."""
PLACES = {"none": "device", "cpu": "host", "nvme": "nvme"}
"""Setting of `engine.offload_optimizer` and `engine.offload_parameters` -> where it puts things."""


def zero1_rows(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 1: DeepSpeed's BF16_Optimizer; in other precisions and offloaded its DeepSpeedZeroOptimizer."""
    if job.precision != "bf16" or job.offload_optimizer != "none":
        yield from zero12_rows(job, weights)
        return
    groups = [_filled(sum(group), 2 * job.replicas) for group in _decay_groups(weights)]
    yield from _cut_states(job, sum(groups), 1)
    yield row("gradients", "gradients", 4, (sum(groups), "parameters"))
    if job.replicas > 1 and groups[0] <= FALLBACK_BUCKET:
        # A larger group is a message by itself, and is sent from where it lies.
        yield row("buffers", "gradient all-reduce", 4, (sum(groups), "elements of a message"), when=(REDUCE,))


def zero12_rows(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 2, and what is left of stage 1: DeepSpeedZeroOptimizer."""
    members, r, low = _decay_groups(weights), job.replicas, job.element
    groups = [_filled(sum(group), 2 * r) for group in members]
    yield from _cut_states(job, sum(groups), 1)
    bucket, message, sent = _zero_bucket(weights)
    held: Collection[str] = STEP
    staged = low
    staging: Collection[str] = (*BACKWARD, REDUCE)
    if job.zero_stage == 1:
        elements = sum(weight.elements for weight in weights), "parameters"
        passes = BACKWARD if job.micro_batches == 1 else PASSES
        yield row("gradients", "gradients", 4, elements, when=(*passes, REDUCE))
        held, sent = APPLY, (REDUCE,)
        staged = 4
        staging = (*BACKWARD, *APPLY) if low == 2 else staging
    if low == 2:
        yield row("gradients", "gradient shares", 4, (sum(groups), "parameters"), over=r, when=held)
    else:
        reached = _reached(members, groups, r), "parameters of weights that lie in the share"
        yield row("gradients", "gradient shares", 4, reached, when=held)
        yield row("buffers", "gradient shares, flat", 4, (max(groups), "parameters of a group"), over=r, when=(UPDATE,))
    yield row("buffers", "gradient bucket", staged, (bucket, "elements"), when=staging)
    yield row("buffers", "gradient bucket, flat", staged, (bucket, "elements"), when=sent)
    if staged == 2:
        yield row("buffers", "gradient reduction in fp32", 4, (message, "elements of a message"), when=sent)
    if job.offload_optimizer != "none":
        yield row("gradients", "gradient shares on the host", 4, (sum(groups), "parameters"), over=r, place="host")
        yield row("weights", "updated weights on the host", low, (sum(groups), "parameters"), over=r, place="host")
        largest = max(weight.elements for weight in weights), "parameters of the largest weight"
        for place in ("device", "host"):
            yield row("buffers", f"gradient on its way, {place}", low, largest, place=place)


def zero3_rows(job: Job, weights: Sequence[Weight]) -> Iterator[Row]:
    """Stage 3: DeepSpeedZeroOptimizer_Stage3. Each weight is filled up by itself."""
    r, low, offloaded = job.replicas, job.element, job.offload_optimizer != "none"
    shares = [[-(-elements // r) for elements in group] for group in _decay_groups(weights)]
    share = sum(map(sum, shares))
    yield from _cut_states(job, share * r, r)
    place = "host" if offloaded else "device"
    yield row("gradients", "gradient shares", 4, (share * r, "parameters"), over=r, place=place)
    if offloaded:
        yield row("gradients", "gradient shares, flat", 4, (share * r, "parameters"), over=r, place=place)
    else:
        flat = max(map(sum, shares)), "parameters of a group's share"
        yield row("buffers", "gradient shares, flat", 4, flat, when=(UPDATE,))
    gathered = min(LIVE, sum(weight.elements for weight in weights))
    yield row("buffers", "gathered weights", low, (gathered, "parameters"), when=PASSES)
    bucket, message, sent = _zero_bucket(weights)
    yield row("buffers", "gradient bucket", 4, (bucket, "elements"))
    yield row("buffers", "gradient reduction", 4, (message, "elements of a message"), when=sent)


def _decay_groups(weights: Sequence[Weight]) -> list[list[int]]:
    """Elements of the weights of the optimizer's groups: of those that decay, and of the rest."""
    groups = [[weight.elements for weight in weights if weight.is_matrix is decays] for decays in (True, False)]
    return [group for group in groups if group]


def _cut_states(job: Job, filled: int, weights_over: int) -> Iterator[Row]:
    """Weights, masters and moments under ZeRO. filled: parameters with what they are filled up by."""
    count = filled, "parameters"
    place = PLACES[job.offload_optimizer]
    yield row("weights", "weights", job.element, count, over=weights_over, place=PLACES[job.offload_parameters])
    yield row("optimizer", "masters", 4, count, over=job.replicas, place=place)
    yield row("optimizer", "moments", 8, count, over=job.replicas, place=place)


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

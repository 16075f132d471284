"""Pipeline stages: which decoder layers, and which ends of the model, each of them holds.

The layers are cut into parts of consecutive layers. With 1F1B a stage holds one part. With interleaved 1F1B (arXiv
2104.04473) stage r of p holds parts r and p + r; with DualPipeV (arXiv 2412.19437) part r on the way out and part
2p - 1 - r on the way back, so that the first stage is also the last.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from megaxf.plan.flops import head_per_sequence, layer_per_sequence

SCHEDULES = ("1f1b", "interleaved", "dualpipev")
"""The values of `parallel.pipeline_schedule`."""


class Part(NamedTuple):
    """Consecutive layers that one stage computes in one go."""

    layers: range
    """Indices of the decoder layers."""
    first: bool
    """Whether the embedding comes before them."""
    last: bool
    """Whether the final norm, the head and the loss come after them."""


def parts_of_stage(schedule: str, stages: int, stage: int) -> list[int]:
    """Which parts a stage holds, in the order in which a micro-batch passes through them."""
    second = {"interleaved": [stages + stage], "dualpipev": [2 * stages - 1 - stage]}
    return [stage, *second.get(schedule, [])]


def in_flight(schedule: str, stages: int, stage: int, micro_batches: int) -> tuple[int, ...]:
    """Of how many micro-batches each part of a stage keeps activations when the stage keeps the most.

    1f1b: one for each stage from this one on. interleaved: those that enter in groups of `stages`, part by part, before
    the first backward pass ends. dualpipev: 2 stages + 1 in both parts together.
    """
    if schedule == "dualpipev":
        return 2 * stages - stage, stage + 1
    if schedule == "interleaved":
        entered = min(3 * stages - 2 * stage - 1, 2 * micro_batches)
        second = min(max(entered - stages, 0), stages)
        return entered - second, second
    return (min(micro_batches, stages - stage),)


def split_layers(run: Any) -> list[list[Part]]:
    """The parts of each stage of a megaxf.config.Run: those of `parallel.pipeline_layers`, or such that the stage with
    the most work has as little as can be."""
    parallel = run.parallel
    stages = parallel.pipeline_parallel_size
    held = [parts_of_stage(parallel.pipeline_schedule, stages, stage) for stage in range(stages)]
    lengths = parallel.pipeline_layers or _balanced_lengths(run, held)
    ends = [sum(lengths[: part + 1]) for part in range(len(lengths))]
    layers = [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return [[Part(layers[part], part == 0, part == len(lengths) - 1) for part in parts] for parts in held]


def _balanced_lengths(run: Any, held: list[list[int]]) -> list[int]:
    """Layers of each part: first shared out over stages by their FLOPs, then over a stage's parts."""
    length = run.data.sequence_length
    head = float(head_per_sequence(run.model, length))
    layers = [float(layer_per_sequence(run.model, length))] * run.model.num_hidden_layers
    parts = sum(map(len, held))
    fixed = [head * (parts - 1 in own) for own in held]
    totals = balance(layers, fixed, least=len(held[0]))
    lengths = [0] * parts
    for own, total in zip(held, totals, strict=True):
        for place, part in enumerate(own):
            lengths[part] = (total + len(own) - 1 - place) // len(own)
    return lengths


def balance(costs: Sequence[float], fixed: Sequence[float], least: int = 1) -> list[int]:
    """How many consecutive items each stage takes, so that the largest sum of costs is as small as can be.

    costs: of each item, in order. fixed: of each stage, beside its items. least: items that a stage has to take.
    Among equally good splits it takes the most even one, by the sum of squares. Exact, by dynamic programming.
    """
    # No more than this is needed where each stage takes items until it has its share.
    enough = (sum(costs) + sum(fixed)) / len(fixed) + max(fixed) + least * max(costs)
    limit = _cheapest(costs, fixed, least, max, lambda cost: cost if cost <= enough else inf)[0] * (1 + 1e-12)
    return _cheapest(costs, fixed, least, operator.add, lambda cost: cost**2 if cost <= limit else inf)[1]


def _cheapest(
    costs: Sequence[float],
    fixed: Sequence[float],
    least: int,
    combine: Callable[[float, float], float],
    price: Callable[[float], float],
) -> tuple[float, list[int]]:
    """(total, lengths) of the split whose stages' prices combine to the smallest total.

    best[n] is the cheapest way to give the first n items to the stages so far.
    """
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for own in fixed:
        options: dict[int, tuple[float, list[int]]] = {}
        for start, (total, lengths) in best.items():
            for end in range(start + least, len(costs) + 1):
                new = combine(total, price(own + before[end] - before[start]))
                if new == inf:  # and so is all that is longer
                    break
                if end not in options or new < options[end][0]:
                    options[end] = new, [*lengths, end - start]
        best = options
    return best[len(costs)]

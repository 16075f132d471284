"""The fastest layouts that fit.

    found = search(Task(shape, 8192, 2048, find("h100"), 16384, memory=80e9))
    found.best[0].candidate, found.best[0].step.seconds, found.best[0].need

All layouts are predicted at once; those that could fit by a lower bound are then counted with the real ledger, fastest
first, until enough of them fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time
from typing import NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.memory.advice import need
from megaxf.plan.memory.ledger import Ledger, ledgers
from megaxf.plan.search.bound import least_bytes
from megaxf.plan.search.space import Candidate, Task, as_run, candidates, columns
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.step import Step, predict

GIB = 2**30


class Choice(NamedTuple):
    """A layout that fits."""

    candidate: Candidate
    step: Step
    ledgers: Sequence[Ledger]
    """Of each pipeline stage."""

    @property
    def need(self) -> int:
        """Bytes of the fullest rank, allowances with them."""
        return need(self.ledgers)


class Found(NamedTuple):
    """The best layouts, fastest first, and how many were looked at."""

    task: Task
    best: Sequence[Choice]
    candidates: int
    """That the rules allow."""
    predicted: int
    """Those of them that may fit by the bound."""
    counted: int
    """Those whose ledger was made."""
    seconds: float
    """That the search took, of one core."""


def search(task: Task, many: int = 10) -> Found:
    """The `many` fastest layouts that fit. Raises PlanError where the rules allow none, or none fits."""
    start = process_time()
    every = list(candidates(task))
    if not every:
        raise PlanError(_nothing_valid(task))
    bounds = least_bytes(columns(task, every))
    light = [candidate for candidate, fits in zip(every, bounds <= task.memory, strict=True) if fits]
    best: list[Choice] = []
    counted = 0
    for place in _order(task, light):
        counted += 1
        chosen = choice(task, light[place])
        if chosen.need <= task.memory:
            best.append(chosen)
            if len(best) == many:
                break
    if not best:
        raise PlanError(_nothing_fits(task, every, bounds))
    return Found(task, best, len(every), len(light), counted, process_time() - start)


def choice(task: Task, candidate: Candidate) -> Choice:
    """A layout with its time and its ledgers."""
    run = as_run(task, candidate)
    step = predict(layout(run, task.world_size), task.hardware)
    return Choice(candidate, step, ledgers(run, task.world_size))


def rank(task: Task, candidate: Candidate) -> int:
    """The place of a layout among all that may fit, 1 for the fastest. Raises PlanError where it is not among them."""
    every = list(candidates(task))
    if candidate not in every:
        raise PlanError(f"{candidate} is not a layout that the rules allow")
    seconds = predict(columns(task, every), task.hardware).seconds
    own = seconds[every.index(candidate)]
    return 1 + int(np.sum(seconds[least_bytes(columns(task, every)) <= task.memory] < own * (1 - 1e-9)))


def _order(task: Task, light: Sequence[Candidate]) -> Sequence[int]:
    """Fastest first; of equally fast ones that with the fewest cuts."""
    if not light:
        return []
    return np.argsort(predict(columns(task, light), task.hardware).seconds, kind="stable").tolist()


def _nothing_valid(task: Task) -> str:
    return (
        f"no layout of {task.world_size:,} ranks cuts {task.global_batch_size:,} sequences of "
        f"{task.sequence_length:,} tokens evenly; use a batch that is a multiple of more of the divisors of "
        f"{task.world_size:,}, or another number of GPUs"
    )


def _nothing_fits(task: Task, every: Sequence[Candidate], bounds: np.ndarray) -> str:
    nearest = int(np.argmin(bounds))
    return (
        f"none of {len(every):,} layouts on {task.world_size:,} x {task.hardware.name} fits into "
        f"{task.memory / GIB:.1f} GiB; the smallest needs {choice(task, every[nearest]).need / GIB:.1f} GiB "
        f"({describe(every[nearest], task.world_size)}); use more GPUs, a smaller model or shorter sequences"
    )


def describe(candidate: Candidate, world_size: int) -> str:
    """A layout in words: "TP 8 SP, PP 16 1f1b, DP 128, ZeRO 1, micro-batch 1, recompute selective"."""
    sharing = " SP" if candidate.sequence_parallel else ""
    schedule = f" {candidate.pipeline_schedule}" if candidate.pipeline_parallel_size > 1 else ""
    return (
        f"TP {candidate.tensor_parallel_size}{sharing}, CP {candidate.context_parallel_size}, "
        f"PP {candidate.pipeline_parallel_size}{schedule}, DP {candidate.data_parallel_size(world_size)}, "
        f"ZeRO {candidate.zero_stage}, micro-batch {candidate.micro_batch_size}, recompute {candidate.recompute}"
    )

"""The plan: size, data, layout and time that belong together.

A budget in GPU-hours buys tokens at the speed of the model, and the law's size depends on the tokens: both are repeated
until they agree.
"""

from __future__ import annotations

from math import floor, log, log2, sqrt
from typing import Any, NamedTuple

from megaxf.plan.budget.request import Limit, Means, Request, check, given, tightest
from megaxf.plan.budget.training import divide, expected_loss, known_flops
from megaxf.plan.conventions import SECONDS_PER_DAY
from megaxf.plan.errors import PlanError
from megaxf.plan.laws.hyperparameters import advise
from megaxf.plan.laws.optimum import Allocation
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT
from megaxf.plan.parameters import COUNTS, count
from megaxf.plan.quantities import quantity
from megaxf.plan.search.find import Choice, Found, search
from megaxf.plan.search.space import Task
from megaxf.plan.shape.propose import MOST_PARAMETERS, Sizes, Wish, propose

FIRST_MFU = 0.4
"""Where the search for the speed begins."""
AGREED = 0.005
"""Share of the limit by which a plan may be off it, before its tokens make up for that."""
STRIDE = 0.97
"""From one size to the next that is tried where the tokens are given."""
MOST_ROUNDS = 12


class Plan(NamedTuple):
    """All that was decided."""

    request: Request
    means: Means
    sizes: Sizes
    training: Allocation
    """Parameters as the law counts them; 6 x parameters x tokens is the compute that was asked for, where one was."""
    loss_interval: Any
    found: Found
    limit: Limit | None

    @property
    def first(self) -> Choice:
        """The fastest layout that fits."""
        return self.found.best[0]

    @property
    def work_seconds(self) -> float:
        """Of all steps."""
        return self.training.tokens / (float(self.first.step.tokens_per_second_per_gpu) * self.means.world_size)

    @property
    def days(self) -> float:
        """With saves and failures."""
        return self.work_seconds * self.means.failures.factor(self.means.world_size) / SECONDS_PER_DAY

    @property
    def gpu_hours(self) -> float:
        """Of all GPUs."""
        return self.days * 24 * self.means.world_size

    @property
    def dollars(self) -> float | None:
        """None where there is no price."""
        return None if self.means.price is None else self.gpu_hours * self.means.price


def plan(request: Request, means: Means) -> Plan:
    """The plan. Raises PlanError where the request has none."""
    check(request, means)
    limit = tightest(request, means)
    flops = known_flops(request, means)
    if flops is not None:
        found = _complete(request, means, divide(request, means.surface, flops), flops, limit)
        if limit and found.gpu_hours > limit.gpu_hours * (1 + 1e-6):
            raise PlanError(_too_much(found, limit))
        return found
    assert limit is not None
    return _within(request, means, limit)


def _within(request: Request, means: Means, limit: Limit) -> Plan:
    """The most that a number of GPU-hours buys. Raises PlanError where the tokens that are given take more."""
    hours = limit.gpu_hours / means.failures.factor(means.world_size)
    flops = hours * 3600 * FIRST_MFU * means.hardware.peak("bf16")
    # The compute that was within the limit, the one that was beyond it, and the round that was nearest.
    low, high, best, off = 0.0, float("inf"), None, float("inf")
    for _ in range(MOST_ROUNDS):
        try:
            found = _complete(request, means, divide(request, means.surface, flops), flops, limit)
        except PlanError:
            if low or high == float("inf"):
                raise
            break  # what is small enough for the limit has no shape
        share = limit.gpu_hours / found.gpu_hours
        low, high = (flops, high) if share >= 1 else (low, flops)
        # Tokens that are free make up for a round that is off; with given ones the size decides, and over is over.
        if abs(log(share)) < off and (request.tokens is None or share >= 1):
            best, off = found, abs(log(share))
        if off < AGREED or high < low * (1 + AGREED):
            break
        flops = _next(flops * (sqrt(share) if request.tokens is None else _stride(share)), low, high)
    if best is None:
        raise PlanError(_too_much(found, limit))
    return best if request.tokens is not None else _spent(best, limit)


def _next(flops: float, low: float, high: float) -> float:
    """The compute to try: where the speed of the last round leads, or the middle where that has been ruled out.

    Sizes and batches come in steps, between which rounds would alternate.
    """
    return flops if low < flops < high else sqrt(low * high)


def _stride(share: float) -> float:
    """At least so far that it may be another shape."""
    return max(share, 1 / STRIDE) if share >= 1 else min(share, STRIDE)


def _spent(found: Plan, limit: Limit) -> Plan:
    """The plan with all whole steps that the limit allows. Raises PlanError where there is none."""
    task = found.found.task
    batch = task.global_batch_size * task.sequence_length
    each = found.gpu_hours * batch / found.training.tokens
    steps = floor(limit.gpu_hours / each * (1 + 1e-12))
    if steps < 1:
        raise PlanError(
            f"{limit.option}: not one step of {quantity(batch)} tokens, which takes {each:.3g} GPU-hours on "
            f"{task.world_size:,} x {task.hardware.name}; raise it, or use fewer GPUs or a smaller --batch"
        )
    size, tokens = found.training.parameters, float(steps * batch)
    loss, interval = expected_loss(found.request, found.means, size, tokens)
    return found._replace(training=Allocation(size, tokens, loss), loss_interval=interval)


def _complete(request: Request, means: Means, training: Allocation, flops: float, limit: Limit | None) -> Plan:
    """The plan of a training."""
    if training.parameters > MOST_PARAMETERS:
        raise PlanError(
            f"{training.flops:.3g} FLOPs with {quantity(training.tokens)} tokens are {training.parameters:.3g} "
            f"parameters, more than any model has; use more tokens or less compute (at most {MOST_PARAMETERS:.0e})"
        )
    counts = COUNTS.get(means.law.counts, "matmul")
    sizes = propose(Wish(training.parameters, counts, request.vocab_size), 1)[0].sizes
    own = getattr(count(sizes), counts)
    # The compute that was asked for is kept to the digit, where data and size do not fix it.
    tokens = request.tokens or flops / FLOPS_PER_WEIGHT / own
    loss, interval = expected_loss(request, means, own, tokens)
    training = Allocation(own, tokens, loss)
    batch = request.batch or suggested_batch(training, request.sequence_length, means.world_size)
    task = Task(
        sizes,
        request.sequence_length,
        batch,
        means.hardware,
        means.world_size,
        means.hardware.memory,
        request.compile,
    )
    return Plan(request, means, sizes, training, interval, search(task, 3), limit)


def suggested_batch(training: Allocation, sequence_length: int, world_size: int) -> int:
    """Sequences of a step: the middle of what laws say, at most the critical batch, and a number that ranks divide."""
    advice = advise(training)
    low, high = advice.batch_tokens()
    wanted = min(sqrt(low * high), advice.critical_batch_tokens) / sequence_length
    odd = world_size // (world_size & -world_size)
    return int(odd * 2 ** max(0, round(log2(max(wanted / odd, 1)))))


def _too_much(found: Plan, limit: Limit) -> str:
    means, training = found.means, found.training
    asked = " and ".join(given(found.request, "flops", "parameters", "tokens"))
    price = "" if found.dollars is None else f", ${quantity(found.dollars)}"
    return (
        f"{asked}: {quantity(training.parameters)} parameters on {quantity(training.tokens)} tokens take "
        f"{quantity(found.gpu_hours)} GPU-hours on {means.world_size:,} x {means.hardware.name} ({found.days:,.1f} "
        f"days{price}), but {limit.option} allows {quantity(limit.gpu_hours)}; raise it, or leave {asked} to the law"
    )

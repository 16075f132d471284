"""The learning rate of each update, a pure function of its number: nothing is stored, so resuming cannot be off by one.

Updates are counted from 1, so the first one of a warm-up has a rate above 0 and the last one has the final rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from megaxf.config import Run, Schedule


def learning_rate(step: int, schedule: Schedule, peak: float, steps: int) -> float:
    """The rate of update `step`, in 1 .. steps.

    Warm-up is linear: peak x step / warmup_steps. Afterwards the rate lies between the schedule's minimum and the peak,
    where the schedule's shape says. Beyond `steps` it stays what it was at the end.
    """
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    share = SHAPES[schedule.kind](step, schedule, steps)
    return schedule.min_learning_rate + (peak - schedule.min_learning_rate) * share


def rate_of(run: Run, step: int) -> float:
    """The rate of one update of a run."""
    return learning_rate(step, run.schedule, run.optimizer.learning_rate, run.train.steps)


def decay_steps(schedule: Schedule, steps: int) -> int:
    """Length of the last phase of warmup_stable_decay: as set, or a tenth of the run, but not longer than what the
    warm-up leaves."""
    return min(schedule.decay_steps or math.ceil(steps / 10), steps - schedule.warmup_steps)


def _constant(step: int, schedule: Schedule, steps: int) -> float:
    return 1.0


def _linear(step: int, schedule: Schedule, steps: int) -> float:
    return 1.0 - _progress(step, schedule.warmup_steps, steps)


def _cosine(step: int, schedule: Schedule, steps: int) -> float:
    """Half a cosine (SGDR, arXiv 1608.03983)."""
    return 0.5 * (1.0 + math.cos(math.pi * _progress(step, schedule.warmup_steps, steps)))


def _warmup_stable_decay(step: int, schedule: Schedule, steps: int) -> float:
    """Flat, then down in the last phase (MiniCPM, arXiv 2404.06395), linear or 1 - sqrt (arXiv 2405.18392)."""
    progress = _progress(step, steps - decay_steps(schedule, steps), steps)
    return 1.0 - (math.sqrt(progress) if schedule.decay_shape == "sqrt" else progress)


def _inverse_sqrt(step: int, schedule: Schedule, steps: int) -> float:
    """As 1 / sqrt(step), from the peak at the end of the warm-up (arXiv 1706.03762)."""
    return math.sqrt(max(schedule.warmup_steps, 1) / min(step, steps))


def _progress(step: int, start: int, end: int) -> float:
    """Where `step` is on the way from start to end: 0 to 1; 0 where there is no way."""
    return min(max(step - start, 0) / max(end - start, 1), 1.0)


SHAPES: dict[str, Callable[[int, Schedule, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "warmup_stable_decay": _warmup_stable_decay,
    "inverse_sqrt": _inverse_sqrt,
}
"""After the warm-up: 1 is the peak, 0 the minimum."""

"""What failures cost a long run, and how often to save.

With M the mean time between failures of the whole cluster, a run saves every t seconds of work, each time for d
seconds, and after a failure loses R seconds and the work since the last save.
"""

from __future__ import annotations

from math import exp, expm1, sqrt
from typing import NamedTuple

GPU_HOURS_BETWEEN_FAILURES = 50_700
"""419 unexpected interruptions in 54 days of 16,384 GPUs (Llama 3, arXiv 2407.21783, section 3.3.4)."""
SAVE_SECONDS, RESTART_SECONDS = 30.0, 600.0
"""Defaults, to be measured: training that a save holds up, and from a failure to the first new step."""


class Failures(NamedTuple):
    """How a cluster fails, and what that takes."""

    gpu_hours: float = GPU_HOURS_BETWEEN_FAILURES
    """Mean time between failures of one GPU, with its share of all else."""
    save_seconds: float = SAVE_SECONDS
    restart_seconds: float = RESTART_SECONDS

    def mean_seconds(self, world_size: int) -> float:
        """Between failures of the whole cluster."""
        return self.gpu_hours * 3600 / world_size

    def interval(self, world_size: int) -> float:
        """Seconds of work between saves with which a run takes the least time."""
        return daly(self.save_seconds, self.mean_seconds(world_size))

    def factor(self, world_size: int, interval: float | None = None) -> float:
        """Time of a run over its work. interval: seconds between saves, the best by default."""
        every = self.interval(world_size) if interval is None else interval
        return expected_factor(every, self.save_seconds, self.restart_seconds, self.mean_seconds(world_size))


def young(save: float, mean: float) -> float:
    """sqrt(2 d M): the first-order interval (doi 10.1145/361147.361115)."""
    return sqrt(2 * save * mean)


def daly(save: float, mean: float) -> float:
    """The higher-order interval (doi 10.1016/j.future.2004.11.016, equation 37); M where saving takes 2 M or more."""
    if save >= 2 * mean:
        return mean
    ratio = save / (2 * mean)
    return young(save, mean) * (1 + sqrt(ratio) / 3 + ratio / 9) - save


def expected_factor(interval: float, save: float, restart: float, mean: float) -> float:
    """Expected time over work, M e^(R/M) (e^((t + d)/M) - 1) / t, for failures that come at random (the same paper,
    equation 20). Infinite where a run would hardly ever save."""
    if (interval + save) / mean > 500 or restart / mean > 500:
        return float("inf")
    return mean * exp(restart / mean) * expm1((interval + save) / mean) / interval

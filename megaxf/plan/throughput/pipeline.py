"""What a pipeline costs beside the work of its slowest stage, in closed form.

The forms are those of the timelines that megaxf.engine.timeline finds by running the schedules' instructions; tests
compare them.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def bubble(
    schedule: Any, stages: Any, micro_batches: Any, forward: Any, backward: Any, parts: Any = 2, waits: Any = True
) -> Any:
    """Seconds in which the slowest stage waits, in a step.

    forward, backward: seconds of a micro-batch in a whole stage. parts: of a stage with `interleaved`. waits: whether
    the interleaved schedule keeps to a plan in which backward passes take twice as long as forward ones.
    1f1b: (p - 1)(F + B), over the parts where there are several (arXiv 2104.04473); dualpipev: p (B + F/2) - F - B.
    """
    name, both = np.asarray(schedule), forward + backward
    plain = (stages - 1) * both
    groups = np.maximum(micro_batches / stages - 0.5, 0)
    late = np.where(waits, np.abs(backward - 2 * forward) * groups * (stages // 3), 0)
    way_back = stages * (backward + forward / 2) - both
    found = np.where(name == "interleaved", plain / parts + late, np.where(name == "dualpipev", way_back, plain))
    return np.where(stages > 1, found, 0.0)


def bubble_ratio(schedule: str, stages: int, micro_batches: int, virtual: int = 1) -> float:
    """Bubble over ideal compute: (p - 1) / (v m) for GPipe, 1F1B and interleaved 1F1B (arXiv 2104.04473), and (p - 1) /
    (3 m) for ZB-H1 where F = B = W (arXiv 2401.10241)."""
    return (stages - 1) / ((3 if schedule == "zb-h1" else virtual) * micro_batches)

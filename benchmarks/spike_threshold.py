"""How often does a spike threshold cry wolf on clean losses, and how small a spike does it still see?

    python -m benchmarks.spike_threshold runs/demo/run other/run ...

Each run folder's losses, in which nothing went wrong, are judged as the trainer would by each threshold, with the run's
own warm-up and the default window. Then with other noise: around the curve's trend the steps' deviations are drawn
anew, by their own spread, normal and heavy-tailed (Student's t of 5 and of 3 degrees of freedom), so that a curve of
some hundred steps gives a hundred thousand. Last, how high a spike has to be late in each run to be found.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from megaxf.config import load_run
from megaxf.config_guards import Guards
from megaxf.train.guards.numbers import NORMAL, LossWindow
from megaxf.train.metrics import read_records

THRESHOLDS = (3.0, 4.0, 6.0, 8.0, 12.0)
REPEATS = 100
"""Curves with other noise, of each run."""
TREND = 31
"""Steps of the running median that is the trend."""
WINDOW = Guards().spike_window


def judged(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(losses, medians before them, robust spreads before them) [steps] of the steps that the trainer judges.

    All losses are learnt from, as with `record`.
    """
    window, found = LossWindow(WINDOW, 1.0), []
    for loss in losses:
        if (limit := window.limit()) < math.inf:
            middle = median(window.losses)
            found.append((loss, middle, limit - middle))
        window.losses.append(loss)
    return tuple(np.array(found).reshape(-1, 3).T)  # type: ignore[return-value]


def alarms(losses: Sequence[float]) -> np.ndarray:
    """How many steps are found to be spikes, by threshold."""
    loss, middle, spread = judged(losses)
    return np.array([np.sum(loss >= middle + threshold * spread) for threshold in THRESHOLDS])


def read(folder: Path) -> tuple[list[float], list[float]]:
    """(the losses of a run folder after its warm-up, those of the warm-up)."""
    warmup = load_run(folder / "config.yaml").schedule.warmup_steps
    losses = {one["step"]: one["loss"] for one in read_records(folder / "metrics.jsonl") if one["kind"] == "train"}
    ordered = [losses[step] for step in sorted(losses)]
    return ordered[warmup:], ordered[:warmup]


def with_noise(losses: Sequence[float], draw: np.random.Generator, freedom: float | None) -> list[float]:
    """The trend with deviations of the same robust spread: normal, or Student's t of so many degrees of freedom."""
    padded = np.pad(losses, TREND // 2, mode="edge")
    trend = np.median(np.lib.stride_tricks.sliding_window_view(padded, TREND), axis=1)
    spread = NORMAL * median(abs(np.asarray(losses) - trend))
    noise = draw.standard_normal(len(trend)) if freedom is None else draw.standard_t(freedom, len(trend))
    return [float(loss) for loss in trend + spread * noise / (NORMAL * np.median(abs(noise)))]


def least_heights(losses: Sequence[float]) -> list[float]:
    """The least spike that is found over the loss of its step, by threshold: the median of the last quarter's steps."""
    loss, middle, spread = (part[-len(losses) // 4 :] for part in judged(losses))
    return [float(np.median((middle + threshold * spread) / loss)) for threshold in THRESHOLDS]


def main() -> None:
    """One table, thresholds as columns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs in which nothing went wrong")
    folders = parser.parse_args().runs
    found = [read(folder) for folder in folders]
    curves, draw = [after for after, _ in found], np.random.default_rng(1)
    steps, repeats = sum(len(judged(curve)[0]) for curve in curves), max(1, REPEATS // len(curves))
    print(f"{len(curves)} runs, {steps:,} judged steps")

    def row(title: str, values: Iterable[object]) -> None:
        print(f"{title:<56}" + "".join(f"{value:>8}" for value in values), flush=True)

    row("threshold", THRESHOLDS)
    row("false alarms", sum(alarms(one) for one in curves))
    row("false alarms, were warm-up judged, too", sum(alarms(before + after) for after, before in found))
    for title, freedom in (("normal", None), ("Student's t, 5", 5.0), ("Student's t, 3", 3.0)):
        counts = sum(alarms(with_noise(one, draw, freedom)) for one in curves for _ in range(repeats))
        row(f"false alarms in 100,000 steps, {title}", [f"{rate:.1f}" for rate in 1e5 * counts / steps / repeats])
    for folder, curve in zip(folders, curves, strict=True):
        row(
            f"least spike found over loss, {len(curve)} steps of {folder.name}",
            [f"{x:.3f}" for x in least_heights(curve)],
        )


if __name__ == "__main__":
    main()

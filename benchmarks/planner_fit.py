"""Fits the planner's constants to the calibration third of published measurements, and prints them.

    python benchmarks/planner_fit.py published-throughput.csv

What it prints goes into megaxf/plan/throughput/constants.py by hand. Least squares of ln(predicted / published) with a
soft loss, so that a run that was slow for reasons of its own does not bend the constants; each constant is held near a
plausible value by a weak prior, one residual of ln(value / start) / width.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.planner_rows import Row, read
from megaxf.plan.throughput.constants import Constants, Software
from megaxf.plan.throughput.step import predict

SHARED = {
    "edge": (100, 0.7), "memory": (0.75, 0.15), "link": (0.75, 0.15), "network": (0.65, 0.3),
    "hop_seconds": (5e-6, 1.0), "interference": (0.2, 0.5),
}  # fmt: skip
"""Constant -> start, and width of its prior in ln."""
ARCHITECTURES = {
    "ampere": {"matrices": (0.85, 0.1), "attention": (0.5, 0.3)},
    "hopper": {"matrices": (0.75, 0.1), "attention": (0.5, 0.3)},
}
SYSTEMS = {
    "megatron-2021": {"factor": (1, 0.2)},
    "llm-foundry": {"factor": (1, 0.2), "flash": (0.6, 0.3)},
    "nanotron": {"factor": (1, 0.2)},
    "megatron-deepspeed": {"factor": (1, 0.2)},
}
"""NeMo's factor is 1: it stands for what the hardware can do. Other software has no row in the calibration third."""
SCALE = 0.1
"""Beyond such errors the loss is linear."""


def names() -> list[tuple[str, str, float, float]]:
    """(whose, constant, start, width of the prior) of everything that is fitted."""
    tables: dict[str, Any] = {"": SHARED, **ARCHITECTURES, **SYSTEMS}
    return [(whose, name, *prior) for whose, priors in tables.items() for name, prior in priors.items()]


def residuals(logs: Any, rows: list[Row]) -> Any:
    """Of the rows, and of the priors at their end."""
    keys = names()
    values = dict(zip([key[:2] for key in keys], np.exp(logs), strict=True))
    errors = [np.log(float(_predict(row, values)) / row.published) for row in rows]
    priors = [SCALE * (log - np.log(start)) / width for log, (_, _, start, width) in zip(logs, keys, strict=True)]
    return np.array(errors + priors)


def _predict(row: Row, values: dict[tuple[str, str], float]) -> Any:
    of: dict[str, dict[str, Any]] = {}
    for (whose, name), value in values.items():
        of.setdefault(whose, {})[name] = value
    constants = Constants(**of[""], **of[row.hardware.architecture])
    software: Software = row.software._replace(**of.get(row.system, {}))
    return predict(row.layout, row.hardware, software, constants).tokens_per_second_per_gpu


def main() -> None:
    """Fit and print."""
    rows = [row for row in read(Path(sys.argv[1]))[0] if row.calibration]
    keys = names()
    start = np.log([key[2] for key in keys])
    found = least_squares(residuals, start, args=(rows,), loss="soft_l1", f_scale=SCALE, diff_step=1e-3)
    errors = np.abs(np.expm1(residuals(found.x, rows)[: len(rows)]))
    print(f"{len(rows)} rows of the calibration third: median error {np.median(errors):.1%}, 90th percentile ", end="")
    print(f"{np.quantile(errors, 0.9):.1%}\n")
    for (whose, name, first, _), log in zip(keys, found.x, strict=True):
        print(f"{whose:<20}{name:<14}{np.exp(log):.3g}   (from {first:g})")


if __name__ == "__main__":
    main()

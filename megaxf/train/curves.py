"""Run folders as a scaling law is fitted to them: size, loss over tokens, loss at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from megaxf.config import load_run
from megaxf.plan.errors import PlanError
from megaxf.plan.fit.runs import Curve
from megaxf.plan.parameters import count
from megaxf.train.metrics import GUARD, read_records
from megaxf.train.plots import smooth

SMOOTHED = 10
"""Steps over which the training loss is averaged, as in arXiv 2203.15556."""


def read_folder(folder: Path) -> tuple[list[Curve], list[str]]:
    """(finished runs in and below a folder, names of those that are not).

    The parameters are all that the model has. The loss at the end is that of the validation split, over all sources,
    where there is one; else the mean of the last training losses. Raises PlanError where there is no run.
    """
    curves, unfinished = [], []
    for metrics in sorted(folder.rglob("metrics.jsonl")):
        curve = _read_run(metrics.parent, str(metrics.parent.relative_to(folder)))
        if isinstance(curve, Curve):
            curves.append(curve)
        else:
            unfinished.append(curve)
    if not curves and not unfinished:
        raise PlanError(
            f"{folder} holds no run: a folder with config.yaml and metrics.jsonl is looked for, at any depth"
        )
    return curves, unfinished


def _read_run(folder: Path, name: str) -> Curve | str:
    """The run, or its name where it has not come to its last step."""
    run = load_run(folder / "config.yaml")
    # What a guard found is no point of a curve; records of slow ranks and of replicas have no loss at all.
    found = (record for record in read_records(folder / "metrics.jsonl") if record["kind"] != GUARD)
    records = [record for record in found if record["loss"] is not None]
    steps = [record for record in records if record["kind"] == "train"]
    if not steps or steps[-1]["step"] < run.train.steps:
        return name
    losses = np.array(smooth([record["loss"] for record in steps], SMOOTHED))
    tokens = np.array([record["tokens"] for record in steps], float)
    result = _validation(records, run.train.steps)
    return Curve(name, count(run.model).total, tokens, losses, losses[-1] if result is None else result)


def _validation(records: list[dict[str, Any]], step: int) -> float | None:
    """The loss over all validation tokens at a step, None where it was not measured."""
    found = [record for record in records if record["kind"] == "evaluation" and record["step"] == step]
    weights = [record["counted_tokens"] for record in found]
    return float(np.average([record["loss"] for record in found], weights=weights)) if sum(weights) else None

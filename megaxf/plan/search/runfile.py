"""A layout as a whole run file, with what laws suggest for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from megaxf.plan.laws.hyperparameters import advise
from megaxf.plan.laws.optimum import Allocation
from megaxf.plan.search.space import Candidate, Task

MOST_WARMUP = 0.1
"""Of the steps."""
LEAST_RATE = 0.1
"""Of the peak learning rate, at the end (arXiv 2203.15556)."""
FOLDER = "tokens/"
"""Where the data is thought to be."""


def steps_for(task: Task, tokens: float) -> int:
    """Of the whole run."""
    return max(1, round(tokens / (task.global_batch_size * task.sequence_length)))


def run_settings(
    task: Task, candidate: Candidate, model: Mapping[str, Any], training: Allocation, every: int
) -> dict[str, Any]:
    """The run. model: the section of that name. every: steps between checkpoints."""
    advice, steps = advise(training), steps_for(task, training.tokens)
    rate, warmup = (sqrt(low * high) for low, high in (advice.learning_rate(), advice.warmup_tokens))
    batch = task.global_batch_size * task.sequence_length
    sections = candidate.settings()
    return {
        "run_folder": "runs/planned",
        "model": dict(model),
        "data": {"sources": {"text": {"folder": FOLDER}}, "sequence_length": task.sequence_length},
        "train": sections["train"]
        | {
            "steps": steps,
            "global_batch_size": task.global_batch_size,
            "precision": task.precision,
            "compile": task.compile,
        },
        "optimizer": {"learning_rate": float(f"{rate:.2g}")},
        "schedule": {
            "kind": "cosine",
            "warmup_steps": round(min(warmup / batch, MOST_WARMUP * steps)),
            "min_learning_rate": float(f"{LEAST_RATE * rate:.2g}"),
        },
        "parallel": sections["parallel"],
        "engine": sections["engine"],
        "checkpoint": {"every": min(every, steps)},
    }

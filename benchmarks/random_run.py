"""A run on random tokens, for steps that are timed."""

from __future__ import annotations

from typing import Any

from megaxf.config import Run, validate


def random_run(model: dict[str, Any], sequence_length: int, train: dict[str, Any], **sections: Any) -> Run[Any]:
    """A validated run whose data is never opened. sections: as in a run file."""
    return validate(
        {
            "run_folder": "unused",
            "model": {**model, "max_position_embeddings": sequence_length},
            "data": {"sources": {"random": {"folder": "unused"}}, "sequence_length": sequence_length},
            "train": {"steps": 1, **train},
            "optimizer": {"learning_rate": 1e-4},
            **sections,
        },
        "benchmark",
    )

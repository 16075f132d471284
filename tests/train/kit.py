"""A tiny data set, a tiny run, and training it within the test's process or on ranks of the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_pipeline.format.writer import DatasetWriter
from megaxf.checkpoint import read_weights, resolve
from megaxf.config import Run, validate
from megaxf.train.console import Report
from megaxf.train.guards import Outcome
from megaxf.train.loop import train
from tests.distributed.tiny import tiny_mesh

LENGTH = 16
VOCABULARY = 61
MODEL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 32,
}


def write_data(folder: Path, rows: int = 16, validation_rows: int = 7, seed: int = 0) -> Path:
    """A shard folder with so many whole rows, its documents of unequal lengths."""
    random = np.random.default_rng(seed)
    with DatasetWriter(folder, vocab_size=VOCABULARY, eod_id=0) as writer:
        for split, count in (("train", rows), ("validation", validation_rows)):
            total = count * LENGTH + 1
            if count:
                ids = random.integers(1, VOCABULARY, total)
                ends = np.append(np.arange(20, total - 1, 23), total)
                ids[ends - 1] = 0
                writer.add(split, ids, np.diff(ends, prepend=0))
        writer.finish()
    return folder


def tiny_run(tmp: Path, **sections: Any) -> Run[Any]:
    """A run of 12 steps of 4 rows on tmp/data into tmp/run; `sections` change single keys of sections."""
    settings: dict[str, Any] = {
        "run_folder": str(tmp / "run"),
        "seed": 7,
        "model": dict(MODEL),
        "data": {"sources": {"text": {"folder": str(tmp / "data")}}, "sequence_length": LENGTH},
        "train": {"steps": 12, "global_batch_size": 4, "micro_batch_size": 2, "precision": "fp32"},
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"kind": "cosine", "warmup_steps": 3},
        "engine": {"zero_stage": 0},
        "metrics": {"tensorboard": False, "peak_tflops": 1.0},
    }
    for name, section in sections.items():
        settings[name] = settings[name] | section if isinstance(settings.get(name), dict) else section
    return validate(settings, "tests")


class Heard(Report):
    """Keeps what was said."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps, quiet=True)
        self.said: list[str] = []

    def say(self, message: str) -> None:
        self.said.append(message)

    warn = say


def start(run: Run[Any], stop_after: int | None = None, **options: Any) -> tuple[Outcome, list[str]]:
    """Train on the ranks of this process' world and stop after so many steps: (outcome, what was said)."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return stop_after is not None and asked > stop_after

    report = Heard(run.train.steps)
    outcome = train(run, tiny_mesh(run), torch.device("cpu"), stop, report, **options)
    return outcome, report.said


def records(run: Run[Any], kind: str = "train") -> list[dict[str, Any]]:
    """The records of one kind in metrics.jsonl."""
    lines = (Path(run.run_folder) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def column(run: Run[Any], name: str) -> list[Any]:
    """One number of every step."""
    return [record[name] for record in records(run)]


def weights(run: Run[Any]) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint."""
    return dict(read_weights(resolve(run.run_folder)))


def checkpoints(run: Run[Any]) -> list[int]:
    """The steps of all checkpoints."""
    folder = Path(run.run_folder) / "checkpoints"
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def assert_same_end(one: Run[Any], other: Run[Any]) -> None:
    """Losses, gradient norms, learning rates and final weights are equal in every bit."""
    for name in ("step", "loss", "gradient_norm", "learning_rate", "tokens"):
        assert column(one, name) == column(other, name), name
    theirs = weights(other)
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, theirs[name]), name

"""The loss on validation data: the sum of the token losses of all ranks over the number of tokens, source by source."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from data_pipeline.rows.batch import Batch
from data_pipeline.rows.evaluation import EvaluationRows
from megaxf.config import Run
from megaxf.config_errors import ConfigError
from megaxf.engine import Engine, to_torch
from megaxf.parallel.collectives import sum_numbers
from megaxf.parallel.mesh import Mesh
from megaxf.train.sources import manifest_of, open_batches


class Evaluation(NamedTuple):
    """What one source gave."""

    source: str
    loss: float
    """Nats per counted token."""
    tokens: int
    sequences: int
    seconds: float

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite where that is too large for a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def validation_rows(run: Run) -> dict[str, EvaluationRows]:
    """The validation rows of each source that has some.

    Raises ConfigError where evaluation is asked for and no source has any, DataError where a folder is damaged.
    """
    splits = {name: manifest_of(run, name).splits for name, source in run.data.sources.items() if source.folder}
    names = [name for name, found in splits.items() if "validation" in found and found["validation"].tokens > 1]
    if not names and (run.evaluate.every or run.evaluate.sequences):
        raise ConfigError(
            "data",
            [
                "the section evaluate has no effect, since no source has validation data; prepare it with "
                "--validation-fraction, or remove the section"
            ],
        )
    return {name: open_batches(run, "validation", [name]).evaluation_rows(name) for name in names}


def evaluate(
    engine: Engine, rows: EvaluationRows, source: str, run: Run, mesh: Mesh, device: torch.device
) -> Evaluation:
    """The loss over the first `evaluate.sequences` rows of a source; collective. The training state stays as it is.

    Micro-batches are dealt to the ranks of the data axis in turn. Every rank makes the same number of calls, since
    parameters may be spread over ranks: where its rows have run out, with rows that do not count.
    """
    started = time.perf_counter()
    total = min(len(rows), run.evaluate.sequences or len(rows))
    size = run.train.micro_batch_size
    nll, counted = 0.0, 0
    for first in range(0, total, size * mesh.data_size):
        batch = padded(rows, first + mesh.data_rank * size, size, total)
        part, tokens = engine.evaluate(to_torch(batch, device))
        nll, counted = nll + part, counted + tokens
    nll, tokens_of_all = sum_numbers([nll, counted], mesh.replicas, device)
    loss = nll / tokens_of_all if tokens_of_all else math.nan
    return Evaluation(source, loss, int(tokens_of_all), total, time.perf_counter() - started)


def padded(rows: EvaluationRows, first: int, size: int, total: int) -> Batch:
    """Rows first .. first + size - 1, filled up beyond row `total` with rows whose labels do not count."""
    wanted = max(0, min(first + size, total) - first)
    return rows.rows(first, wanted, size)

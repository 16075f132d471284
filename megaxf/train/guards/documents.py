"""Which documents were in a batch that is at fault."""

from __future__ import annotations

from typing import Any

from data_pipeline.audit.batch import StepReader
from data_pipeline.audit.lineage import Part
from data_pipeline.audit.positions import Point, Session
from data_pipeline.errors import DataError
from megaxf.config import Run
from megaxf.config_data import portion_at
from megaxf.train.sources import AnyBatches, cache_options

MOST = 1000
"""Documents of a source that are named; `megaxf data batch` tells of all."""


def documents_of(run: Run[Any], batches: AnyBatches, step: int, samples: int) -> dict[str, list[int]]:
    """Source -> numbers of the documents in the batch of a step, in ascending order.

    samples: read before the step. Empty where the documents cannot be told, as of text tokenised while training.
    """
    size = portion_at(run, step).global_batch_size
    point = Point(step - 1, samples)
    session = Session("", 1, size, {}, batches.state(samples), None, [point])
    folders = {name: source.folder for name, source in run.data.sources.items() if source.folder}
    found: dict[str, set[int]] = {}
    try:
        for passage in StepReader(Part(session, point, point), folders, cache_options(run)).passages(step):
            found.setdefault(passage.source, set()).add(passage.document)
    except DataError:
        return {}
    return {name: sorted(numbers)[:MOST] for name, numbers in found.items()}

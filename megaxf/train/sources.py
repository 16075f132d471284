"""The section `data` of a run as the data loader takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.manifest import Manifest, read_manifest
from data_pipeline.loader.batches import Batches, check_vocabulary
from data_pipeline.loader.settings import OrderOptions, PhaseOptions, SourceOptions
from data_pipeline.online.batches import OnlineBatches, check_online_vocabulary
from data_pipeline.order.lanes import Lanes
from data_pipeline.order.mixture import Share, check_epochs
from data_pipeline.order.skips import Skips
from data_pipeline.rows.fill_in_the_middle import FillInTheMiddle, find_marks
from data_pipeline.rows.reader import RowOptions
from data_pipeline.sources.base import ReadOptions
from data_pipeline.stream.cache import open_store
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import Retries, is_url
from data_pipeline.tokenizer.base import load_tokenizer
from megaxf.config import Run
from megaxf.config_data import Source, samples_before

_GIB = 2**30

AnyBatches = Batches | OnlineBatches


def open_run(run: Run) -> AnyBatches:
    """What a run trains on. Raises DataError where it does not fit the run."""
    source = next(iter(run.data.sources.values()))
    if not source.dataset:
        return open_batches(run, "train")
    data, split = run.data, source.dataset_split
    options = ReadOptions(source.text_field or "text", split=split, streaming=source.streaming)
    assert source.tokenizer  # the configuration sees to it
    batches = OnlineBatches(
        [source.dataset], source.tokenizer, data.sequence_length, run.seed, data.isolate_documents, options=options
    )
    check_online_vocabulary(batches, run.model.vocab_size)
    return batches


def open_batches(run: Run, split: str, names: list[str] | None = None) -> Batches:
    """The loader of a run's sources, or of some of them by themselves; raises DataError where they do not fit the run.

    Files are looked at when they are first read; `check_files` looks at all of them.
    """
    data, cache = run.data, cache_options(run)
    sources = {
        name: SourceOptions(source.folder, Share(*source.share), _row_options(source, data, split, cache))
        for name, source in data.sources.items()
        if names is None or name in names
    }
    order = _order(run) if names is None and split == "train" else OrderOptions(longest_sequence_length=longest(run))
    batches = Batches(sources, split, data.sequence_length, run.seed, data.isolate_documents, order, cache)
    check_vocabulary(batches, run.model.vocab_size)
    return batches


def manifest_of(run: Run, name: str) -> Manifest:
    """What the data set of a source says about itself. Raises DataError."""
    folder, cache = run.data.sources[name].folder, cache_options(run)
    if is_url(folder) and cache is not None:
        return open_store(folder, cache)[1]
    return read_manifest(folder)


def check_files(batches: AnyBatches) -> None:
    """Raises DataError where files of the sources are missing or cut; looks at each, so one rank does it for all."""
    if isinstance(batches, OnlineBatches):
        return
    for dataset in batches.datasets:
        dataset.check_sizes()


def epoch_warnings(run: Run, batches: AnyBatches) -> list[str]:
    """A sentence for each source that the run reads more often than its max_epochs; raises DataError where that is to
    be refused."""
    limits = {name: one.max_epochs for name, one in run.data.sources.items() if one.max_epochs is not None}
    use = batches.use(samples_before(run, run.train.steps + 1))
    return check_epochs(use, limits, run.data.over_max_epochs)


def longest(run: Run) -> int:
    """The sequence length of which the rows of all phases are parts."""
    lengths = [phase.sequence_length or 0 for phase in run.data.phases]
    return run.data.longest_sequence_length or max(run.data.sequence_length, *lengths, 0)


def cache_options(run: Run) -> CacheOptions | None:
    """How shards in a store are kept on this machine."""
    cache = run.data.cache
    if cache is None:
        return None
    return CacheOptions(
        Path(cache.folder),
        limit_bytes=int(cache.limit_gib * _GIB),
        ahead_bytes=int(cache.ahead_gib * _GIB),
        retries=Retries(cache.attempts),
        on_damage=cache.on_damage,
        quarantine=Path(run.run_folder) / "quarantine" if cache.on_damage == "skip" else None,
        storage_options=cache.storage_options,
    )


def _row_options(source: Source, data: Any, split: str, cache: CacheOptions | None) -> RowOptions:
    """Only training rows are rearranged: a validation loss is that of the texts as they are."""
    middle = source.fill_in_the_middle if split == "train" else None
    found = None
    if middle is not None:
        tokenizer = load_tokenizer(open_dataset(source.folder, split, cache).tokenizer_folder())
        found = FillInTheMiddle(middle.rate, find_marks(tokenizer, middle.tokens), middle.spm_rate)
    return RowOptions(data.sequence_length, packing=data.packing, train_on=source.train_on, fill_in_the_middle=found)


def _order(run: Run) -> OrderOptions:
    data, units = run.data, {source.share[1] for source in run.data.sources.values()}
    phases: list[PhaseOptions] = []
    if data.phases:
        (unit,) = units
        phases = [PhaseOptions(0, run.train.global_batch_size)]
    for phase in data.phases:
        shares = None if phase.shares is None else {name: Share(one, unit) for name, one in phase.shares.items()}
        batch = phase.global_batch_size or phases[-1].global_batch_size
        phases.append(PhaseOptions(phase.from_step - 1, batch, phase.sequence_length, shares))
    lanes = None if data.lanes is None else Lanes(data.lanes.lanes, data.lanes.window, run.train.global_batch_size)
    return OrderOptions(phases, skipped_samples(run), lanes, longest(run))


def skipped_samples(run: Run) -> list[tuple[int, int]]:
    """First and last samples that `data.skip_steps` passes over, numbered as if none were.

    A range of steps is what these steps read in a run with the ranges before it in the list. Raises DataError where
    ranges overlap.
    """
    found: list[tuple[int, int]] = []
    for first, last in run.data.skip_steps:
        ends = np.asarray([samples_before(run, first), samples_before(run, last + 1) - 1], dtype=np.int64)
        begin, end = Skips(found).apply(ends).tolist()
        # Ranges that were skipped before and lie within this one are parts of it.
        found = sorted([one for one in found if not begin <= one[0] <= end] + [(begin, end)])
    return found

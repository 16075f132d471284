"""Which documents were in a step: the rows of its samples, and whose tokens stand in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from data_pipeline.audit.lineage import Part
from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.settings import OrderOptions, PhaseOptions, SourceOptions, row_options
from data_pipeline.loader.share import DataShare
from data_pipeline.loader.state import State
from data_pipeline.order.lanes import Lanes
from data_pipeline.rows.reader import RowOptions, RowReader
from data_pipeline.stream.options import CacheOptions
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer


class Passage(NamedTuple):
    """The tokens of one document in one row. A row of S inputs holds S + 1 tokens: the last is a target only."""

    rank: int
    """Of the data-parallel ranks."""
    row: int
    """Of this rank's rows of the step, from 0."""
    source: str
    epoch: int
    row_of_epoch: int
    """Number of the row in the source."""
    document: int
    """Number in the split."""
    origin: str | None
    """File and line (or row) that the document came from, the first line being 1; None where that is not known."""
    column: int
    """Where the passage begins in the row."""
    tokens: int
    offset: int
    """Where it begins in the document, in tokens."""
    document_tokens: int
    """The end-of-document token included."""
    start: int
    """Where it begins in the split, in tokens."""


class StepReader:
    """Finds the documents of the steps that one start of a run has made."""

    def __init__(self, part: Part, folders: Mapping[str, str], cache: CacheOptions | None = None):
        """`folders`: where the sources lie now. Raises DataError where they hold other data than the run has read."""
        self._part, state = part, part.session.state
        self.batches = _open(state, folders, cache)
        for name, dataset in zip(self.batches.names, self.batches.datasets, strict=True):
            was = state["sources"][name][0]
            if not dataset.manifest.digest.startswith(was):
                raise DataError(
                    f"holds other data than the run has read: its manifest was {was} and is "
                    f"{dataset.manifest.digest[:16]}; put back what was there",
                    dataset.folder,
                )

    def passages(self, step: int, ranks: int | None = None, only: int | None = None) -> Iterator[Passage]:
        """What stood in the rows of a step, rank by rank, row by row, in the order of the row.

        step: as the log numbers them. ranks: data-parallel ranks, by default as many as there were. only: this rank.
        Raises DataError.
        """
        session = self._part.session
        first, end = session.samples_at(step - 1), session.samples_at(step)
        ranks = session.data_ranks if ranks is None else ranks
        for rank in range(ranks) if only is None else [only]:
            yield from self._of_rank(rank, *DataShare(rank, ranks).block(first, end - first))

    def text(self, passage: Passage, tokens: int | None = None) -> str | None:
        """The text of a passage, or of so many tokens at its beginning; None where the data set has no tokenizer."""
        dataset = self.batches.datasets[self.batches.names.index(passage.source)]
        if not dataset.manifest.tokenizer:
            return None
        stop = passage.start + min(passage.tokens, tokens or passage.tokens)
        return self._tokenizer.decode(dataset.read(passage.start, stop).tolist())

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """One for all: sources of a run have the same."""
        return load_tokenizer(self.batches.datasets[0].tokenizer_folder())

    def _of_rank(self, rank: int, first: int, count: int) -> Iterator[Passage]:
        samples = self.batches.samples(first, count)
        readers = [self._reader(number, samples.sequence_length) for number in range(len(self.batches.names))]
        for row, (source, epoch, number) in enumerate(
            zip(samples.source.tolist(), samples.epoch.tolist(), samples.row.tolist(), strict=True)
        ):
            dataset, name = self.batches.datasets[source], self.batches.names[source]
            for _, column, start, length in readers[source].pieces(epoch, [number]):
                for document, begin, tokens in documents(dataset, start, start + length):
                    span = dataset.document_span(document)
                    yield Passage(
                        rank,
                        row,
                        name,
                        epoch,
                        number,
                        document,
                        _origin(dataset, document),
                        column=column + begin - start,
                        tokens=tokens,
                        offset=begin - span[0],
                        document_tokens=span[1] - span[0],
                        start=begin,
                    )

    def _reader(self, number: int, sequence_length: int) -> RowReader:
        batches, name = self.batches, self.batches.names[number]
        source = _source(self._part.session.state, name, "")
        run = (sequence_length, batches.longest, batches.isolate_documents, batches.seed)
        return RowReader(batches.datasets[number], row_options(source, name, *run))


def documents(dataset: TokenDataset, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Of each document in the tokens [start, stop) of a split: its number, where it begins in them, how many tokens."""
    document = dataset.document_at(start)
    while start < stop:
        end = min(dataset.document_span(document)[1], stop)
        yield document, start, end - start
        document, start = document + 1, end


def _origin(dataset: TokenDataset, document: int) -> str | None:
    found = dataset.origin(document)
    return None if found is None else f"{found[0]}:{found[1] + 1}"


def _open(state: State, folders: Mapping[str, str], cache: CacheOptions | None) -> Batches:
    """The loader that a start of a run had, but for what does not decide which tokens are in a row."""
    names = sorted(state["sources"])
    for name in names:
        if state["sources"][name][1].startswith("online"):
            raise DataError(f"{name} was tokenised while training; documents can be told of prepared shards only")
    missing = sorted(state["sources"].keys() - folders.keys())
    if missing:
        raise DataError(f"data.sources.{missing[0]} was read in this step and is no source of the run any more")
    phases = [
        PhaseOptions(step, batch, length, dict(zip(names, weights, strict=True)))
        for step, _, batch, length, weights in state["phases"]
    ]
    lanes = None if state["lanes"] is None else Lanes(*state["lanes"])
    order = OrderOptions(phases, state["skips"], lanes, state["longest"])
    sources = {name: _source(state, name, folders[name]) for name in names}
    return Batches(sources, state["split"], state["phases"][0][3], state["seed"], order=order, cache=cache)


def _source(state: State, name: str, folder: str) -> SourceOptions:
    packing = state["sources"][name][1].split(",")[0]
    return SourceOptions(folder, rows=RowOptions(state["longest"], packing=packing))

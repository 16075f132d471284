"""What a run takes from where and in which order: the settings of `Batches` beyond the simplest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import DataError
from data_pipeline.order.lanes import Lanes
from data_pipeline.order.mixture import Share, as_share, weights_of
from data_pipeline.order.phases import Phase
from data_pipeline.rows.reader import RowOptions


@dataclass(frozen=True)
class SourceOptions:
    """One source: where its shards are, its part of the run and how its rows are made."""

    folder: str | Path
    """Or the URL of a store."""
    share: Share | float = 1.0
    """A number is a weight."""
    rows: RowOptions | None = None
    """Packing, masks and the like. Lengths, isolation, seed and name are those of the run, whatever stands here."""


class PhaseOptions(NamedTuple):
    """What changes at a step; None: as in the phase before, at first as the run's own settings say."""

    first_step: int
    global_batch_size: int
    """In rows (sequences)."""
    sequence_length: int | None = None
    shares: Mapping[str, Share | float] | None = None
    """For all sources; 0 leaves one out."""


@dataclass(frozen=True)
class OrderOptions:
    """The order of the samples of a run."""

    phases: Sequence[PhaseOptions] = ()
    """Without any, the batch size is the caller's affair and nothing else changes."""
    skips: Sequence[tuple[int, int]] = ()
    """(first, last) samples that are passed over, numbered as if none were."""
    lanes: Lanes | None = None
    """For object stores; None: all rows of an epoch are permuted together."""
    longest_sequence_length: int | None = None
    """The longest that the run may ever have; by default that of its phases. It cannot change later."""

    def longest(self, sequence_length: int) -> int:
        """The sequence length that all rows of the run are parts of."""
        return self.longest_sequence_length or max(
            [sequence_length, *(phase.sequence_length or 0 for phase in self.phases)]
        )

    def resolve(self, sequence_length: int, shares: Mapping[str, Share], rows: Mapping[str, int]) -> list[Phase]:
        """The phases with everything said, weights in the order of `shares`. Raises DataError."""
        found = []
        for phase in self.phases or [PhaseOptions(0, 1)]:
            sequence_length = phase.sequence_length or sequence_length
            if phase.shares is not None:
                _check_names(phase, shares)
                shares = {name: as_share(phase.shares[name]) for name in shares}
            weights = weights_of(shares, rows)
            found.append(Phase(phase.first_step, phase.global_batch_size, sequence_length, tuple(weights)))
        return found


def _check_names(phase: PhaseOptions, sources: Mapping[str, Share]) -> None:
    assert phase.shares is not None
    if phase.shares.keys() != sources.keys():
        raise DataError(
            f"the phase from step {phase.first_step} shares out {', '.join(sorted(phase.shares))}, and the sources are "
            f"{', '.join(sorted(sources))}; name each of them, with 0 for one that is left out"
        )


def as_source(value: SourceOptions | tuple[str | Path, float]) -> SourceOptions:
    """A pair is a folder and a weight."""
    return value if isinstance(value, SourceOptions) else SourceOptions(*value)


def row_options(
    source: SourceOptions, name: str, sequence_length: int, longest: int, isolate_documents: bool, seed: int
) -> RowOptions:
    """How the rows of a source are made in a run."""
    return replace(
        source.rows or RowOptions(sequence_length),
        sequence_length=sequence_length,
        longest=longest,
        isolate_documents=isolate_documents,
        seed=seed,
        source=name,
    )


def describe_rows(options: RowOptions) -> str:
    """What decides about the content of a source's rows, beyond what holds for the whole run."""
    middle = f", {options.fill_in_the_middle}" if options.fill_in_the_middle else ""
    return f"{options.packing}, train on {options.train_on}{middle}"

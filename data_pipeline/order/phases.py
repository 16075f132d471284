"""Phases of a run: weights, sequence length and batch size that change at stated steps.

The batch size decides only which samples are a step's. Samples of one length and mix are a stretch; a new stretch
begins where either changes, deals its samples by a new `Blend`, and goes on in each source where the one before it
stopped (see `cuts` for what a change of length costs). Stretches are worked out from the phases alone, in
O(phases x sources): nothing but the position is remembered, and phases that come later change nothing before them as
long as `longest`, the length that all rows are parts of, stays: a run that may need longer rows later says so from the
start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.order.blend import Blend
from data_pipeline.order.cuts import carried_over
from data_pipeline.order.permutation import Int64
from data_pipeline.order.skips import Skips


class Phase(NamedTuple):
    """What holds from a step on, until the next phase. Batch sizes are in rows (sequences)."""

    first_step: int
    global_batch_size: int
    sequence_length: int
    weights: tuple[float, ...]
    """One for each source; 0 leaves a source out."""


class Step(NamedTuple):
    """The samples of one step."""

    phase: int
    first_sample: int
    samples: int


class Stretch(NamedTuple):
    """Samples of one length and mix."""

    first_sample: int
    """By position in the run."""
    first_unskipped: int
    """By number among all samples, skipped ones included."""
    sequence_length: int
    parts: int
    """Rows of this length in one of the longest length."""
    blend: Blend
    taken: Int64
    """[sources]: where each source goes on, in rows of this length since its first epoch began."""


class Phases:
    """Step -> samples, and sample -> source and how many rows that source gave before it."""

    def __init__(self, phases: Sequence[Phase], longest: int, units: Sequence[int], skips: Skips):
        """`units`: rows of the longest sequence length in an epoch of each source. Raises DataError."""
        _check(phases, longest)
        self.phases, self.longest, self._units, self._skips = list(phases), longest, list(units), skips
        steps = np.diff([phase.first_step for phase in phases]).tolist()
        sizes = [phase.global_batch_size for phase in phases]
        self._firsts = [0]
        for count, size in zip(steps, sizes[:-1], strict=True):
            self._firsts.append(self._firsts[-1] + count * size)
        self.stretches = self._lay()

    def step(self, number: int) -> Step:
        """The phase of a step (from 0), its first sample and how many samples it has."""
        index = max(k for k, phase in enumerate(self.phases) if phase.first_step <= number)
        phase = self.phases[index]
        first = self._firsts[index] + (number - phase.first_step) * phase.global_batch_size
        return Step(index, first, phase.global_batch_size)

    def stretch(self, first_sample: int, count: int) -> tuple[Stretch, int | None]:
        """The stretch of these samples and where the next one begins. Raises DataError when they do not lie in one."""
        begins = [one.first_sample for one in self.stretches]
        index = max(k for k, begin in enumerate(begins) if begin <= first_sample)
        end = begins[index + 1] if index + 1 < len(begins) else None
        if end is not None and first_sample + count > end:
            raise DataError(
                f"samples {first_sample} to {first_sample + count - 1} lie in two phases, "
                f"the second of which begins at sample {end}; read them apart"
            )
        return self.stretches[index], end

    def locate(self, stretch: Stretch, positions: Int64) -> tuple[Int64, Int64]:
        """For positions in a stretch: the source, and how many rows (of its length) that source gave before."""
        source, index = stretch.blend.locate(self._skips.apply(positions) - stretch.first_unskipped)
        return source, index + stretch.taken[source]

    def use(self, samples: int) -> list[tuple[Stretch, Int64]]:
        """Rows from each source [sources] that the first `samples` samples take in each stretch, skipped ones too."""
        found = []
        ends = [one.first_sample for one in self.stretches[1:]] + [samples]
        for stretch, end in zip(self.stretches, ends, strict=True):
            if stretch.first_sample < samples:
                found.append((stretch, self._given(stretch, min(end, samples))))
        return found

    def _lay(self) -> list[Stretch]:
        stretches: list[Stretch] = []
        taken = np.zeros(len(self._units), dtype=np.int64)
        last: Phase | None = None
        for phase, first in zip(self.phases, self._firsts, strict=True):
            parts = self.longest // phase.sequence_length
            if last is not None:
                if (phase.sequence_length, phase.weights) == (last.sequence_length, last.weights):
                    continue
                before = stretches[-1]
                taken = before.taken + self._given(before, first)
                if before.parts != parts:
                    taken = self._carried(taken, before.parts, parts)
            blend, unskipped = Blend(phase.weights), self._unskipped(first)
            stretches.append(Stretch(first, unskipped, phase.sequence_length, parts, blend, taken))
            last = phase
        return stretches

    def _given(self, stretch: Stretch, end: int) -> Int64:
        """Rows of each source from the beginning of the stretch to this position."""
        return np.asarray(stretch.blend.counts(self._unskipped(end) - stretch.first_unskipped), dtype=np.int64)

    def _carried(self, taken: Int64, old: int, new: int) -> Int64:
        pairs = zip(taken.tolist(), self._units, strict=True)
        return np.asarray([carried_over(rows, units, old, new) for rows, units in pairs], dtype=np.int64)

    def _unskipped(self, position: int) -> int:
        """The number behind that of the sample before this position: what is skipped here belongs to what follows."""
        return int(self._skips.apply(np.asarray([position - 1], dtype=np.int64))[0]) + 1 if position else 0


def _check(phases: Sequence[Phase], longest: int) -> None:
    """Raises DataError for phases that do not follow one another, or whose sizes do not fit."""
    if not phases or phases[0].first_step != 0:
        raise DataError("the first phase must begin at step 0")
    last = -1
    for number, phase in enumerate(phases):
        here = f"phases[{number}]"
        if phase.first_step <= last:
            raise DataError(f"{here}.first_step = {phase.first_step} must be above {last}, that of the phase before")
        last = phase.first_step
        for what in ("global_batch_size", "sequence_length"):
            if getattr(phase, what) < 1:
                raise DataError(f"{here}.{what} = {getattr(phase, what)} must be at least 1")
        if longest % phase.sequence_length:
            raise DataError(
                f"{here}.sequence_length = {phase.sequence_length} does not divide the longest, {longest}; "
                "shorter rows are cut from the longest ones"
            )
        if len(phase.weights) != len(phases[0].weights):
            raise DataError(f"{here} has {len(phase.weights)} weights for {len(phases[0].weights)} sources")

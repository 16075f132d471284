"""Which parts of which starts made the weights that a run has now.

A start goes on from a checkpoint, so that what the one before it did beyond this point is lost, and done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from data_pipeline.audit.positions import Point, Session


class Part(NamedTuple):
    """What survives of one start."""

    session: Session
    first: Point
    end: Point
    """The last place, up to the next part's first, of which the record tells."""


class Lost(NamedTuple):
    """Steps that were made and given up, since no checkpoint holds them."""

    first_step: int
    last_step: int
    restarted: str
    """When the start that makes them again began."""


class Lineage(NamedTuple):
    """What became of all starts."""

    parts: list[Part]
    """Without those of which nothing survives; the first step is the first."""
    lost: list[Lost]
    problems: list[str]
    """Where the record contradicts itself."""

    def part_of(self, step: int) -> Part:
        """The part in which a step (as the log numbers them) was made, or would be as the last start has it."""
        return max((part for part in self.parts if part.first.step < step), key=lambda part: part.first.step)


def trace(sessions: Sequence[Session]) -> Lineage:
    """Follows the starts of a run from the first to the last."""
    parts: list[Part] = []
    lost: list[Lost] = []
    before: Session | None = None
    for session in sessions:
        first = session.points[0]
        if before is not None and (reached := _reached(before, session)) > first.step:
            lost.append(Lost(first.step + 1, reached, session.time))
        parts = [_cut(part, first.step) for part in parts if part.first.step < first.step]
        parts.append(Part(session, first, session.points[-1]))
        before = session
    problems = [problem for part in parts for problem in _contradictions(part)]
    for old, new in pairwise(parts):
        if old.end.step != new.first.step:
            problems.append(
                f"the start of {new.session.time} goes on after step {new.first.step:,}, "
                f"and nothing is recorded of the steps from {old.end.step + 1:,} to there"
            )
    return Lineage(parts, lost, problems)


def _reached(before: Session, session: Session) -> int:
    """The last step of a session that anything tells of."""
    return max([point.step for point in before.points] + [session.reached or 0])


def _cut(part: Part, step: int) -> Part:
    """What remains when the run goes back to a step."""
    points = [point for point in part.session.points if point.step <= min(step, part.end.step)]
    return part._replace(end=max(points))


def _contradictions(part: Part) -> Iterator[str]:
    """Counts of samples that the batch sizes of this start do not make."""
    for point in part.session.points:
        expected = part.session.samples_at(point.step) if point.step >= part.first.step else None
        if point != (point.step, expected):
            yield (
                f"the record of the start of {part.session.time} has {point.samples:,} samples read after step "
                f"{point.step:,}; its batch sizes make that {expected if expected is None else f'{expected:,}'}"
            )

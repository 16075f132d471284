"""Shows that a run has read every sample once, from what it has recorded, or names where it has not.

Every start covers an interval of samples. The intervals must follow one another without gap or overlap, but for skips
that are declared; and at each start every source must stand where the start before had left it, in rows of an epoch
whose order is the same. The work is proportional to starts x phases x sources, however many samples there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.audit.dealt import Dealt, Span
from data_pipeline.audit.lineage import Lineage, Part, trace
from data_pipeline.audit.positions import Session
from data_pipeline.loader.state import State, describe_change


@dataclass
class Coverage:
    """What a run has read. It is whole when there are no problems."""

    lineage: Lineage
    samples: int = 0
    """Read so far; skipped ones do not count."""
    skipped: list[Span] = field(default_factory=list)
    """Passed over by declaration, numbered as if none were."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Read of each source."""
    passed_over: dict[str, int] = field(default_factory=dict)
    """Tokens of each source that will not come again in their epoch: skips, and what changes of length cost."""
    epochs: dict[str, float] = field(default_factory=dict)
    """How far each source has come, what was passed over included; of the sources that the run has now,
    and whose length is known: text that is tokenised while training has none."""
    changes: list[str] = field(default_factory=list)
    """What a start changed in the settings of the data."""
    problems: list[str] = field(default_factory=list)


def cover(sessions: Sequence[Session]) -> Coverage:
    """The account of a run's starts, oldest first."""
    lineage = trace(sessions)
    found = Coverage(lineage, problems=list(lineage.problems))
    read, old, dealt = 0, None, Dealt(lineage.parts[0].session)
    for part in lineage.parts:
        new = Dealt(part.session)
        if old is not None:
            _compare(found, old, part)
            found.problems += _moved(dealt, new, read, part)
        old, dealt = part, new
        first, end = new.span(part.first.samples, part.end.samples)
        found.problems += _jumps(new, read, first, part)
        found.samples += part.end.samples - part.first.samples
        found.skipped += new.skipped(read, end)
        for span in new.read(first, end):
            found.tokens.update(new.tokens(*span))
        read = end
    for name, place in dealt.places(read).items():
        found.tokens[name] += 0  # A source that has given nothing yet is listed, too.
        if size := dealt.epoch_tokens[name]:
            found.epochs[name] = place.tokens / size
        found.passed_over[name] = place.tokens - found.tokens[name]
    return found


def _jumps(new: Dealt, read: int, first: int, part: Part) -> Iterator[str]:
    """Samples between the last one that was read and the first of a start which are missing, or come again."""
    start = f"the start of {part.session.time}, from step {part.first.step + 1:,}"
    if first < read:
        yield f"samples {first:,} to {read - 1:,} were read and come again in {start}"
    for begin, end in new.read(read, first):
        yield f"samples {begin:,} to {end - 1:,} were read by no step, and no skip declares it; see {start}"


def _moved(old: Dealt, new: Dealt, number: int, part: Part) -> Iterator[str]:
    """Sources that a start finds elsewhere than the one before has left them."""
    before, after = old.places(number), new.places(number)
    for name, place in after.items():
        left = before[name].tokens if name in before else 0
        if place.tokens == left:
            continue
        start = f"in the start of {part.session.time}, from step {part.first.step + 1:,}"
        what = "are passed over" if place.tokens > left else "come again"
        yield f"source {name}: {abs(place.tokens - left):,} tokens {what} {start}: its share in the past has changed"


def _compare(found: Coverage, old: Part, new: Part) -> None:
    """What the settings of a start change, and whether rows are still the same rows."""
    where = f"from step {new.first.step + 1:,} on"
    before, after = old.session.state | {"samples": new.first.samples}, new.session.state
    both = before["sources"].keys() & after["sources"].keys()
    renumbered = describe_change(_rows(before, both), _rows(after, both))
    found.problems += [
        f"{where}, {one}; what was read before and what was read after it cannot be compared" for one in renumbered
    ]
    found.changes += [f"{where}, {one}" for one in describe_change(before, after) if one not in renumbered]


def _rows(state: State, names: set[str]) -> dict[str, Any]:
    """Of a state, what decides which tokens a row of a source is and when it comes."""
    sources = {name: [digest, rows.split(",")[0]] for name, (digest, rows) in state["sources"].items() if name in names}
    return state | {"sources": sources, "isolate_documents": None, "phases": [], "skips": []}


def as_json(found: Coverage) -> dict[str, Any]:
    """The account as plain data."""
    parts = [
        {
            "time": part.session.time,
            "data_ranks": part.session.data_ranks,
            "first_step": part.first.step + 1,
            "last_step": part.end.step,
            "first_sample": part.first.samples,
            "samples": part.end.samples - part.first.samples,
            "end_recorded": part.session.ended,
        }
        for part in found.lineage.parts
    ]
    sources = {
        name: {"tokens": tokens, "epochs": found.epochs.get(name), "tokens_passed_over": found.passed_over.get(name)}
        for name, tokens in sorted(found.tokens.items())
    }
    return {
        "whole": not found.problems,
        "samples": found.samples,
        "starts": parts,
        "lost": [lost._asdict() for lost in found.lineage.lost],
        "skipped": [[first, end - 1] for first, end in found.skipped],
        "sources": sources,
        "changes": found.changes,
        "problems": found.problems,
    }

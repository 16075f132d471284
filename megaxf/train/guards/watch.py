"""What the ranks' heartbeats tell: who is silent, who has failed, who stands still. Pure: time is an argument.

A rank is lost where its beats have stopped for `timeout` seconds (the process is gone, stopped or cut off), or where it
has said that it failed. Ranks wait for one another, so that one that stands still holds all: where no rank has come
further for so long, those that are behind the others are the ones to look at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

PHASES = ("start", "load", "data", "first step", "train", "evaluate", "save", "done")
"""In the order of a step."""
SLOW = ("start", "load", "first step", "evaluate", "save")
"""Phases that may take SLOWNESS times as long without a sign of progress."""
SLOWNESS = 6
FAILED = "failed: "
MOST = 8
"""Ranks that are named, of each kind."""


class Beat(NamedTuple):
    """What a rank says about itself."""

    host: str = "?"
    step: int = 0
    phase: str = "start"
    """One of PHASES, or FAILED and why."""
    number: int = 0
    """Of its beats: it rises as long as the process lives, whatever the rank waits for."""

    def to_text(self) -> str:
        """One line, as `read_beat` takes it."""
        return json.dumps(self)


def read_beat(text: str | bytes) -> Beat:
    """The beat of such a line."""
    return Beat(*json.loads(text))


class Verdict(NamedTuple):
    """Why the run ends."""

    text: str
    stuck: list[int]
    """The ranks whose stacks are to be written."""


@dataclass
class _Seen:
    beat: Beat
    heard: float
    """When the last new beat came."""
    moved: float
    """When the step or the phase was last another one."""


@dataclass
class Watch:
    """Keeps the last beat of each rank."""

    timeout: float
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def see(self, rank: int, beat: Beat, now: float) -> None:
        """Take note of what a rank's place holds at this time, in seconds of any clock."""
        seen = self._seen.setdefault(rank, _Seen(beat, now, now))
        if beat.number != seen.beat.number:
            seen.heard = now
        if beat[1:3] != seen.beat[1:3]:
            seen.moved = now
        seen.beat = beat

    def verdict(self, now: float, patience: float | None = None) -> Verdict | None:
        """Why the run has to end, if it does. patience: seconds of silence in the place of the time-out."""
        running = {rank: seen for rank, seen in self._seen.items() if seen.beat.phase != "done"}
        silence = self.timeout if patience is None else patience
        reasons = {rank: seen.beat.phase for rank, seen in running.items() if seen.beat.phase.startswith(FAILED)}
        reasons |= {
            rank: f"has been silent for {now - seen.heard:.0f} s, so its process is gone, stopped or cut off"
            for rank, seen in running.items()
            if now - seen.heard > silence and rank not in reasons
        }
        if reasons:
            named = [f"{self._name(rank)} {why}" for rank, why in sorted(reasons.items())[:MOST]]
            more = f"; and {len(reasons) - MOST} more" if len(reasons) > MOST else ""
            return Verdict(f"{'; '.join(named)}{more}. {self.last_steps()}", [])
        if not running:
            return None
        slow = any(seen.beat.phase in SLOW for seen in running.values())
        still = now - max(seen.moved for seen in running.values())
        if still <= self.timeout * (SLOWNESS if slow else 1):
            return None
        stuck = self._behind(running)
        named = [self._name(rank) for rank in stuck[:MOST]]
        return Verdict(
            f"no rank has come further for {still:.0f} s; behind the others, or where they are: {', '.join(named)}"
            f"{', ...' if len(stuck) > MOST else ''}. {self.last_steps()}",
            stuck,
        )

    def last_steps(self) -> str:
        """Where each rank was last, those at one place together."""
        places: dict[tuple[int, str], list[int]] = {}
        for rank, seen in sorted(self._seen.items()):
            places.setdefault((seen.beat.step, seen.beat.phase.split(":")[0]), []).append(rank)
        parts = []
        for (step, phase), ranks in sorted(places.items()):
            names = ", ".join(self._name(rank) for rank in ranks[:MOST])
            parts.append(f"step {step} ({phase}): {names}" + (f" and {len(ranks) - MOST} more" if ranks[MOST:] else ""))
        return f"Last heard of: {'; '.join(parts)}"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._seen[rank].beat.host})"

    @staticmethod
    def _behind(running: Mapping[int, _Seen]) -> list[int]:
        places = {rank: (seen.beat.step, PHASES.index(seen.beat.phase)) for rank, seen in running.items()}
        return [rank for rank, place in places.items() if place == min(places.values())]

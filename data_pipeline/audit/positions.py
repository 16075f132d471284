"""The record that a run keeps of where it stood in its data: positions.jsonl, a line at a time.

    {"kind": "start", "time": ..., "step": 8, "samples": 64, "reached": 11, "data_ranks": 4, "global_batch_size": 8,
     "rows": {"web": 1200}, "state": {...}}
    {"kind": "checkpoint", "time": ..., "step": 12, "samples": 96}
    {"kind": "end", "time": ..., "step": 14, "samples": 112}

`step` and `samples` are steps made and samples (rows of a batch) read so far. `reached`: the step that the start before
came to, as far as anything tells. `rows`: of the longest sequence length, in an epoch of each source. `state`: see
`loader.state`. A checkpoint's line is written before the checkpoint; an end that a kill allowed no line for has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import DataError
from data_pipeline.loader.state import State

POSITIONS = "positions.jsonl"


class Point(NamedTuple):
    """A place where a run stood."""

    step: int
    """Steps made."""
    samples: int
    """Samples read."""


@dataclass(frozen=True)
class Session:
    """From one start of a run to its end, or to the last line before a kill."""

    time: str
    data_ranks: int
    global_batch_size: int
    """Where the state has no phases."""
    rows: dict[str, int]
    """Of the longest sequence length, in an epoch of each source."""
    state: State
    reached: int | None
    """The step that the session before came to, as the metrics told when this one started."""
    points: list[Point] = field(default_factory=list)
    """The start first, then where it stood at checkpoints and at the end."""
    ended: bool = False
    """A line tells of the end."""

    def samples_at(self, step: int) -> int:
        """Samples read after so many steps, as the phases (or the batch size) of this session have it."""
        first, samples, size = max(one for one in self._batches() if one[0] <= step)
        return samples + (step - first) * size

    def _batches(self) -> list[tuple[int, int, int]]:
        """(first step, first sample, batch size), from where each holds."""
        phases = self.state["phases"]
        if len(phases) == 1:
            return [(*self.points[0], self.global_batch_size)]
        return [(first, samples, size) for first, samples, size, *_ in phases]


def read_positions(path: str | Path) -> list[Session]:
    """The starts of a run, oldest first. A last line that a crash has cut is passed over.

    Raises DataError where there is no record, or a line is none of it.
    """
    sessions: list[Session] = []
    for number, line in _lines(Path(path)):
        try:
            record = json.loads(line)
            kind, point = record.pop("kind"), Point(int(record.pop("step")), int(record.pop("samples")))
            if kind == "start":
                sessions.append(Session(**record, points=[point]))
                continue
            session = sessions[-1]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(f"is no line of such a record ({error}); restore the file", path, number) from None
        session.points.append(point)
        sessions[-1] = replace(session, ended=kind == "end")
    if not sessions:
        raise DataError("tells of no start: the run has not read anything yet", path)
    return sessions


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(
            "is missing: name the folder of a run (run_folder) that was started with this version of megaxf or later",
            path,
        ) from None
    lines = data.split(b"\n")
    # What is behind the last line's end is nothing, or torn.
    return enumerate(lines[:-1], 1)

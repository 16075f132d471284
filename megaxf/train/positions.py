"""Records where a run stands in its data, at each start, checkpoint and end, for `megaxf data coverage` and `batch`.

What the lines hold is said in data_pipeline.audit.positions, which reads them.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_pipeline.audit.positions import Point
from megaxf.train.sources import AnyBatches


class Positions:
    """Appends to positions.jsonl. Every line is on disk before the run goes on; rank 0 writes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        _drop_torn_line(file)

    def start(
        self, point: Point, batches: AnyBatches, *, data_ranks: int, global_batch_size: int, reached: int | None
    ) -> None:
        """A run begins or goes on. reached: the last step of which the start before has left a trace."""
        parts = batches.longest // batches.sequence_length
        rows = {name: count // parts for name, count in zip(batches.names, batches.row_counts, strict=True)}
        state = batches.state(point.samples)
        self._write(
            "start",
            point,
            reached=reached,
            data_ranks=data_ranks,
            global_batch_size=global_batch_size,
            rows=rows,
            state=state,
        )

    def checkpoint(self, point: Point) -> None:
        """A checkpoint is about to be written."""
        self._write("checkpoint", point)

    def end(self, point: Point) -> None:
        """The run ends or is stopped."""
        self._write("end", point)

    def _write(self, kind: str, point: Point, **more: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"kind": kind, "time": time, **point._asdict(), **more}
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _drop_torn_line(file: Path) -> None:
    """Removes what a crash has left behind the last whole line, so that the next line stands by itself."""
    if file.exists():
        data = file.read_bytes()
        os.truncate(file, data.rfind(b"\n") + 1)

"""Records where a run stands in its data, at each start, checkpoint and end, for `megaxf data coverage` and `batch`.

What the lines hold is said in data_pipeline.audit.positions, which reads them.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_pipeline.audit.positions import Point
from megaxf.config_errors import ConfigError
from megaxf.train.lines import Lines
from megaxf.train.sources import AnyBatches


class Positions:
    """Appends to positions.jsonl. Every line is on disk before the run goes on; rank 0 writes."""

    def __init__(self, file: Path) -> None:
        """Raises OSError where the file cannot be written; later, `fault` says so."""
        _drop_torn_line(file)
        self._lines = Lines(file, durable=True)

    @property
    def fault(self) -> ConfigError | None:
        """Why there are no more lines."""
        return self._lines.fault

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
        self._lines.close()

    def _write(self, kind: str, point: Point, **more: Any) -> None:
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._lines.add({"kind": kind, "time": time, **point._asdict(), **more})


def _drop_torn_line(file: Path) -> None:
    """Removes what a crash has left behind the last whole line, so that the next line stands by itself."""
    if file.exists():
        data = file.read_bytes()
        os.truncate(file, data.rfind(b"\n") + 1)

"""Files of the run folder that grow by a line of JSON at a time; rank 0 writes them.

A disk that is full, or gone, must not cost what a run has learned: its checkpoints may lie elsewhere. So an error while
it trains is kept, the loop sees it before the next step, and saves before it ends the run with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from megaxf.config_errors import ConfigError


class Lines:
    """Appends records to a file. After the first that cannot be written there are no more, and `fault` says why."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        """durable: a line is on disk when `add` returns, so that it outlives a crash of the machine."""
        self.fault: ConfigError | None = None
        self._path, self._durable = path, durable
        self._file = path.open("ab")

    def add(self, record: Mapping[str, Any]) -> None:
        """Append one record. A reader sees it at once."""
        if self.fault:
            return
        try:
            with writing(self._path):
                self._file.write(json.dumps(record).encode() + b"\n")
                self._file.flush()
                if self._durable:
                    os.fsync(self._file.fileno())
        except ConfigError as fault:
            self.fault = fault

    def close(self) -> None:
        """No more is to come."""
        with suppress(OSError):  # which tries what is in `fault` once more
            self._file.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises ConfigError where something of the run folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            str(path), [f"cannot be written: {error}; mend that, and the same command goes on from the last checkpoint"]
        ) from None

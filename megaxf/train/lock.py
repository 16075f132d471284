"""One start at a time in a run folder: two would drop each other's records and half-written checkpoints."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from megaxf.config_errors import ConfigError

LOCK = "run.lock"
"""The file's name, in the run folder. It stays there: only the lock on it, which ends with the process, counts."""
PATIENCE = 10.0
"""Seconds for which a start waits for one before it to be gone, as a requeue may find it still ending."""


class Lock:
    """The lock of a run folder, from `take` to the end of the block."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder, self._warn = folder, warn
        self._file: TextIO | None = None

    def take(self) -> None:
        """Take it, unless that is done, or there is no folder yet.

        `warn` is told where the file system has no locks. Raises ConfigError while another start holds it.
        """
        path = self._folder / LOCK
        if self._file is not None or not self._folder.is_dir():
            return
        try:
            self._file = path.open("a+", encoding="utf-8")  # over NFS, only what is open for writing can be locked
            self._wait(self._file)
        except OSError as error:
            self._warn(f"{path} cannot be locked ({error}): do not start this run twice at a time")

    def sign(self) -> None:
        """Write who has it, for the message to others; apart from `take`, so that a start with nothing to do writes
        nothing."""
        if self._file is not None:
            with suppress(OSError):  # as on a full disk
                self._file.truncate(0)
                self._file.write(f"process {os.getpid()} on {platform.node()}")
                self._file.flush()

    def _wait(self, file: TextIO) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise self._taken(file) from None
                time.sleep(0.2)

    def _taken(self, file: TextIO) -> ConfigError:
        file.seek(0)
        owner = file.read() or "another process"
        return ConfigError(
            "run_folder",
            [
                f"run_folder = {self._folder} is in use by {owner}; let that run end, or stop it "
                f"(touch {self._folder / 'STOP'}), or name another run_folder"
            ],
        )

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

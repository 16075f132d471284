"""What the readers of a cache folder tell each other: which shards each uses now, needs next, and whether it waits.

Each reader keeps a lock on its file for as long as it lives, so that those of dead processes are known without a look
at process numbers, which mean nothing between containers. Whoever reads or writes here holds the lock of the room.
"""

from __future__ import annotations

import functools
import itertools
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import orjson

from data_pipeline.stream.locks import locked, take

_numbers = itertools.count()


@functools.lru_cache(maxsize=1)
def _process(number: int) -> str:
    """A name of the process with this number that no other has, in whatever container; another after a fork."""
    return f"{number}-{uuid.uuid4().hex[:12]}"


class Needs:
    """The announcements in a folder as one reader of one process makes and sees them."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._process = _process(os.getpid())
        self._mine = folder / f"{self._process}-{next(_numbers)}"
        handle = take(self._mine, wait=False)
        assert handle is not None, "a name of our own was taken"
        self._handle = handle
        self._in_use: list[str] = []
        self._next: list[str] = []
        self._waits = False

    def close(self) -> None:
        """Takes back what was announced."""
        self._mine.unlink(missing_ok=True)
        os.close(self._handle)

    def announce(self, in_use: Sequence[str], next_keys: Sequence[str]) -> None:
        """Replaces what this reader uses now, and needs next in this order."""
        self._in_use, self._next = list(in_use), list(next_keys)
        self._write()

    def wait(self, waits: bool) -> None:
        """Whether this reader waits for a file, so that its process will not let go of anything meanwhile."""
        self._waits = waits
        self._write()

    def all(self) -> list[tuple[list[str], list[str]]]:
        """What each living reader uses and needs next, this one's own first."""
        return [(self._in_use, self._next), *((in_use, following) for _, in_use, following, _ in self._others())]

    def others_go_on(self) -> bool:
        """Whether some other process has shards in use and does not wait itself: it will let go of them."""
        others = [other for other in self._others() if other[0] != self._process]
        waiting = {process for process, _, _, waits in others if waits}
        return any(in_use and process not in waiting for process, in_use, _, _ in others)

    def _write(self) -> None:
        try:
            self._mine.write_bytes(orjson.dumps([self._process, self._in_use, self._next, self._waits]))
        except OSError:
            # A full disk: the others do not hear of it, and may drop what is then fetched again.
            os.truncate(self._mine, 0)

    def _others(self) -> list[tuple[str, list[str], list[str], bool]]:
        """(process, in use, next, waits) of the other living readers; removes the files of dead ones."""
        found = []
        for path in self._folder.iterdir():
            if path == self._mine:
                continue
            with locked(path, wait=False) as dead:
                if dead:
                    path.unlink()
                elif data := path.read_bytes():
                    found.append(tuple(orjson.loads(data)))
        return found

"""The thread that fetches what is needed next before it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from data_pipeline.stream.room import NoRoom

_POLL = 0.5
"""Seconds until it looks again for room, or at a shard that another process was fetching."""


class Ahead:
    """Brings shards in the order of need until all are here; starts with the first wish, ends with the process."""

    def __init__(self, bring: Callable[[int, int], bool]):
        """`bring(shard number, place in the order of need)`: False if another process is at it; may raise NoRoom."""
        self._bring = bring
        self._wanted: list[tuple[int, int]] = []
        self._failed: set[int] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def want(self, wanted: list[tuple[int, int]]) -> None:
        """Replaces what is wanted: (shard number, place), the most urgent first."""
        with self._changed:
            self._wanted = wanted
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fetch ahead", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends after the file that is being fetched."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._closed:
            wanted = self._wanted
            again = self._bring_all(wanted)
            with self._changed:
                if self._wanted is wanted and not self._closed:
                    self._changed.wait(_POLL if again else None)

    def _bring_all(self, wanted: list[tuple[int, int]]) -> bool:
        """Whether something has to be tried again."""
        again = False
        for number, place in wanted:
            if self._closed or self._wanted is not wanted:
                break
            if number in self._failed:
                continue
            try:
                again |= not self._bring(number, place)
            except NoRoom:
                return True
            # Whoever asks for the shard meets the same trouble, and can tell the user; here nobody listens.
            except Exception:
                self._failed.add(number)
        return again

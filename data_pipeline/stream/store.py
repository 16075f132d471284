"""Reads files of one folder in any fsspec store (s3, gs, http, memory, file), and trusts no answer.

Every answer is measured and shown to a check; failures, short answers and damaged content are asked for again, with a
growing wait. Credentials are found by the store's own library.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from data_pipeline.errors import DataError

Answer = TypeVar("Answer")

_GOLDEN = 0.6180339887498949
"""Multiples of the golden ratio, taken modulo 1, spread evenly: a jitter that needs no random state."""

_LISTLESS = {"http", "https"}
"""Protocols over which a folder cannot be listed reliably."""


class Retries(NamedTuple):
    """How often a read is tried; the wait in seconds doubles from `first_wait` up to `longest_wait`."""

    attempts: int = 8
    first_wait: float = 0.5
    longest_wait: float = 30.0


class DamageError(DataError):
    """The store answers, but with other bytes than the manifest tells, each time it is asked."""


def is_url(place: object) -> bool:
    """Whether a place is in a store (`s3://bucket/folder`), not a path of the local file system."""
    return "://" in str(place)


class Store:
    """One folder in a store, read only. Used by several threads at once."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, retries: Retries | None = None):
        """`options` go to the store's own class, such as `endpoint_url` for s3. Raises DataError for an unknown one."""
        self.url = url.rstrip("/")
        self._retries = retries or Retries()
        self._files, self._root = connect(self.url, options)
        # Begins elsewhere in each process, so that the ranks of a node do not come back at the same moment.
        self._waits = itertools.count(os.getpid())

    def read(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        fault: Callable[[bytes], str | None] = lambda data: None,
    ) -> bytes:
        """Bytes [start, stop) of a file, or all of it. `fault` says what is wrong with an answer, None if nothing is.

        Raises DamageError when the file is missing, or each try gave a short or faulty answer, else DataError.
        """

        def wrong(data: bytes) -> str | None:
            if stop is not None and len(data) != stop - start:
                return f"{len(data)} bytes came instead of bytes {start} to {stop}; it was cut or changed"
            return fault(data)

        return self._ask(name, lambda path: self._files.cat_file(path, start=start or None, end=stop), wrong)

    def size(self, name: str) -> int:
        """Bytes of a file. Raises as `read`."""
        return int(self._ask(name, lambda path: self._files.info(path)["size"]))

    def sizes(self, folder: str) -> dict[str, int] | None:
        """Bytes by name of the files in a folder, from one listing; None where the store has no listings."""
        if self.url.split("://")[0] in _LISTLESS:
            return None
        self._files.invalidate_cache()
        found = self._ask(folder, lambda path: self._files.ls(path, detail=True))
        return {entry["name"].rsplit("/", 1)[-1]: entry["size"] for entry in found if entry["type"] == "file"}

    def _ask(
        self, name: str, ask: Callable[[str], Answer], wrong: Callable[[Answer], str | None] = lambda answer: None
    ) -> Answer:
        place, reason, damaged = f"{self.url}/{name}", "", False
        for attempt in range(self._retries.attempts):
            if attempt:
                time.sleep(self._wait(attempt))
            try:
                answer = ask(f"{self._root}/{name}")
            except FileNotFoundError:
                raise DamageError("is missing in the store, though it belongs to the data set", place) from None
            # Each store has exceptions of its own: what is not known here may pass by itself.
            except Exception as error:
                reason, damaged = f"{type(error).__name__}: {error}", False
                if isinstance(error, PermissionError) or "Credentials" in reason:
                    raise DataError(f"may not be read ({reason}); check the credentials for it", place) from None
            else:
                if (fault := wrong(answer)) is None:
                    return answer
                reason, damaged = fault, True
        advice = "copy the data set there again" if damaged else "check the store and the way to it, and start again"
        message = f"could not be read in {self._retries.attempts} tries, the last reason: {reason}; {advice}"
        raise (DamageError if damaged else DataError)(message, place)

    def _wait(self, attempt: int) -> float:
        longest = min(self._retries.longest_wait, self._retries.first_wait * 2 ** (attempt - 1))
        return longest * (0.5 + 0.5 * (next(self._waits) * _GOLDEN % 1.0))


def connect(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. Raises DataError where no such store is known."""
    from fsspec.core import url_to_fs

    try:
        files, path = url_to_fs(url, **(options or {}))
    except (ImportError, ValueError) as error:
        extra = '; run pip install "megaxf[s3]"' if url.startswith("s3://") else ""
        raise DataError(f"cannot be opened ({error}){extra}", url) from None
    return files, str(path).rstrip("/")

"""Output whose reader may be killed, as mpirun is with the log of its ranks: they go on, and save what they have."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

GONE = (errno.EPIPE, errno.EIO)
"""What writing gives where nobody reads: a pipe any more, a terminal any more, which Open MPI gives its ranks."""


class Lasting:
    """A text stream that goes nowhere once its reader is gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """See io.TextIOBase."""
        return self._last(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        """See io.TextIOBase."""
        self._last(self._stream.flush, None)

    def _last(self, work: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return work()
        except OSError as error:
            if error.errno not in GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            return otherwise


def outlive_readers() -> None:
    """Let stdout and stderr of this process last."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, Lasting(getattr(sys, name)))

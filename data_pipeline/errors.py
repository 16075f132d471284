"""The one exception of this package that is meant for people."""

from __future__ import annotations

import os
from pathlib import Path


class DataError(ValueError):
    """Something is wrong with data or with a request about it; the message names it and says what to do.

    `path` and `line` (from 1) lead the message as `path:line`, the form that editors and terminals jump to.
    """

    user_fault = True
    """Printed by the command line without a traceback."""

    def __init__(self, message: str, path: str | Path | None = None, line: int | None = None):
        self.path = path
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)


def unusable(error: OSError) -> DataError:
    """What the operating system says about a path, in words for people; `error` must name the path."""
    return DataError(f"cannot be used: {error.strerror}", os.fspath(error.filename))

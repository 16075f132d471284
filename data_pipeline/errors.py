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
        place = "" if path is None else f"{shown(path)}: " if line is None else f"{shown(path)}:{line}: "
        super().__init__(place + message)


def shown(path: str | Path) -> str:
    """A path as text: bytes of a file name that are no UTF-8, which Python holds as surrogates, as `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def unusable(error: OSError) -> DataError:
    """What the operating system says about a path, in words for people; `error` must name the path."""
    return DataError(f"cannot be used: {error.strerror}", os.fspath(error.filename))

"""What the planner writes: places are checked before the work, and a file is whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from megaxf.plan.errors import PlanError

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")
"""Endings of what Matplotlib draws; where there is none, it would make one up."""


def check_file(
    path: Path | None, option: str = "-o", endings: Sequence[str] = (), read: Sequence[str | Path | None] = ()
) -> None:
    """Raises PlanError where a file cannot be written; None is asked for by nobody.

    endings: that its name may have. read: what else the command was given, of which a file would be lost.
    """
    if path is None:
        return
    if path.is_dir():
        raise PlanError(f"{option} {path} is a folder; name a file in it")
    if endings and path.suffix.lower() not in endings:
        raise PlanError(f"{option} {path} does not end as a picture does; use one of {', '.join(endings)}")
    if any(Path(other).exists() and path.exists() and path.samefile(other) for other in read if other is not None):
        raise PlanError(f"{option} {path} is a file that is read here, and would be lost; use another name")
    _check_folder(path.parent, f"{option} {path}")


def check_folder(path: Path | None, option: str = "-o") -> None:
    """Raises PlanError where there is no folder and none can be made; None is asked for by nobody."""
    if path is None:
        return
    above = path
    while not above.exists() and above != above.parent:
        above = above.parent
    _check_folder(above, f"{option} {path}")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes the file at the end. Raises PlanError where the disk does not let it.

    What is no plain file, such as /dev/stdout, is written to at once.
    """
    whole = path.resolve()
    plain = whole.is_file() or not whole.exists()
    part = whole.with_name(f".{whole.stem}.part{whole.suffix}") if plain else whole
    with said(path):
        try:
            yield part
            if plain:
                os.replace(part, whole)
        finally:
            if plain:
                part.unlink(missing_ok=True)


@contextmanager
def said(path: Path) -> Iterator[None]:
    """Turns a fault of the disk into a PlanError that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror or error}; use another place for -o") from None


def as_json(found: Any) -> str:
    """What a verb found, as JSON; JSON has no infinity, which is null."""
    return json.dumps(_finite(found), indent=1, allow_nan=False)


def _finite(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not isfinite(found) else found


def _check_folder(folder: Path, asked: str) -> None:
    if not folder.is_dir():
        wrong = "is no folder" if folder.exists() else "does not exist; make it first"
        raise PlanError(f"{asked} cannot be written: {folder} {wrong}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PlanError(f"{asked} cannot be written: {folder} is not yours to write to; use another place")

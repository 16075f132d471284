"""Output folders that are complete or not there, and never a mixture of old and new."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megaxf.convert.errors import ConvertError


@contextmanager
def new_folder(out: Path, *, overwrite: bool, mark: str) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name in the end, or is removed where the block fails.

    overwrite: an existing `out` is replaced as a whole, if it has the file `mark` and so is an earlier output.
    Raises ConvertError where `out` is in the way, and for a failure to write.
    """
    out = out.absolute()
    _check(out, overwrite, mark)
    temporary = out.with_name(f".{out.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            _sync(path)
        if out.exists():
            old = temporary.with_name(f"{temporary.name}-old")
            out.rename(old)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
        _sync(out.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConvertError(f"{out} was not made: {error}") from error
        raise


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder: a name must not outlive what it stands for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(out: Path, overwrite: bool, mark: str) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / mark).exists():
        raise ConvertError(f"{out} exists and is no earlier output (it has no {mark}); choose another name")
    if not overwrite:
        raise ConvertError(f"{out} exists; pass --overwrite to replace it as a whole, or choose another name")


@contextmanager
def new_file(out: Path, *, overwrite: bool, magic: bytes) -> Iterator[Path]:
    """A temporary file beside `out` that takes its name in the end, or is removed where the block fails.

    overwrite: an existing `out` is replaced, if it begins with `magic` and so is of the same kind.
    Raises ConvertError where `out` is in the way, and for a failure to write.
    """
    if out.is_dir():
        raise ConvertError(f"{out} is a folder, and this format is one file; give its name, as {out / 'model.gguf'}")
    if out.exists():
        with out.open("rb") as file:
            alike = file.read(len(magic)) == magic
        if not (alike and overwrite):
            advice = "pass --overwrite to replace it, or choose another name" if alike else "choose another name"
            raise ConvertError(f"{out} exists{'' if alike else ' and is no earlier output'}; {advice}")
    temporary = out.with_name(f".{out.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        temporary.rename(out)
        _sync(out.absolute().parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConvertError(f"{out} was not made: {error}") from error
        raise

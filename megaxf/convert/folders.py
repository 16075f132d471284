"""Output folders that are complete or not there, and never a mixture of old and new."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from data_pipeline.disk import shortage
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form

SPARE_BYTES = 1 << 20
"""Room for what is no tensor; tokenizers may have some more."""


@contextmanager
def new_folder(out: Path, form: Form, *, mark: str, needed: int, inner: str = "") -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name in the end, or is removed where the block fails.

    form.overwrite: an existing `out` is replaced as a whole, if it has the file `mark` and so is an earlier output, and
    no other folders in it than `inner`, a pattern as of the shell.
    form.inspect: sees the folder before it takes its name. needed: bytes, about, which it will take.
    Raises ConvertError where `out` is in the way, the disk is too small, and for a failure to write.
    """
    out = out.resolve()  # a link stays, and what it leads to is replaced
    _check(out, form.overwrite, mark, inner)
    _check_room(out, needed)
    temporary = out.with_name(f".{out.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        form.inspect(temporary)
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


def _check(out: Path, overwrite: bool, mark: str, inner: str) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / mark).exists():
        raise ConvertError(f"{out} exists and is no earlier output (it has no {mark}); choose another name")
    if not overwrite:
        raise ConvertError(f"{out} exists; pass --overwrite to replace it as a whole, or choose another name")
    if foreign := sorted(path.name for path in out.iterdir() if path.is_dir() and not fnmatch(path.name, inner)):
        raise ConvertError(
            f"{out} holds {', '.join(foreign)}, which no conversion has made and --overwrite would remove; choose "
            "another name, or move what is to be kept"
        )


def _check_room(out: Path, needed: int) -> None:
    """An earlier output is there until the new one is whole, so its room does not count."""
    if said := shortage(out.parent, needed + SPARE_BYTES):
        raise ConvertError(f"{out} was not made: it {said}; make room, or choose another disk")


@contextmanager
def new_file(out: Path, form: Form, *, magic: bytes, needed: int) -> Iterator[Path]:
    """A temporary file beside `out` that takes its name in the end, or is removed where the block fails.

    As `new_folder`; an existing `out` is replaced only if it begins with `magic` and so is of the same kind.
    """
    out = out.resolve()
    if out.is_dir():
        raise ConvertError(f"{out} is a folder, and this format is one file; give its name, as {out / 'model.gguf'}")
    if out.exists():
        with out.open("rb") as file:
            alike = file.read(len(magic)) == magic
        if not (alike and form.overwrite):
            advice = "pass --overwrite to replace it, or choose another name" if alike else "choose another name"
            raise ConvertError(f"{out} exists{'' if alike else ' and is no earlier output'}; {advice}")
    _check_room(out, needed)
    temporary = out.with_name(f".{out.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        form.inspect(temporary)
        _sync(temporary)
        temporary.rename(out)
        _sync(out.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConvertError(f"{out} was not made: {error}") from error
        raise

"""Which format a file has, and which files a folder holds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from data_pipeline.errors import DataError
from data_pipeline.format import foreign
from data_pipeline.format.pieces import Piece

_NO_FORMATS = ("find",)


class Options(NamedTuple):
    """What a format may need to be told."""

    eod_id: int
    dtype: str | None = None
    """Type of the ids, where the files do not tell it."""
    column: str | None = None
    """That holds the ids, where there are several."""
    cut_at_eod: bool = False
    """Documents are what lies between end-of-document ids, whatever the files say."""


class Format(Protocol):
    """A module of this package."""

    HELP: str
    SUFFIX: str

    def size(self, path: Path) -> int:
        """Bytes of ids in a file, for progress."""

    def documents(self, path: Path, options: Options) -> Iterator[Piece]:
        """The documents of a file. Raises DataError."""


def formats() -> dict[str, str]:
    """The formats by name, each with its line of help."""
    names = [module.name for module in pkgutil.iter_modules(foreign.__path__) if module.name not in _NO_FORMATS]
    return {name: named(name).HELP for name in names}


def named(name: str) -> Format:
    """The format of this name."""
    module: Format = importlib.import_module(f"{foreign.__name__}.{name}")
    return module


def find(path: Path, name: str | None = None) -> tuple[str, list[Path]]:
    """The format and the files of an input, in the order of their names; `name`: the format, if it was told.

    Raises DataError where there is no file or no one format.
    """
    known = formats()
    if name is not None and name not in known:
        raise DataError(f"--format {name} is not known; the formats are {', '.join(known)}")
    if path.is_dir():
        found = {one: sorted(path.rglob(f"*{named(one).SUFFIX}")) for one in ([name] if name else known)}
        found = {one: files for one, files in found.items() if files}
        if len(found) == 1:
            return next(iter(found.items()))
        which = f"holds files of several formats ({', '.join(found)}); say which with --format" if found else None
        ends = ", ".join(f"*{named(one).SUFFIX} ({one})" for one in known)
        raise DataError(which or f"holds no token files: none of {ends}", path)
    # Megatron names a pair of files by what both names begin with, or by either.
    index = path.with_suffix(".idx") if path.suffix == ".bin" else path.with_name(f"{path.name}.idx")
    if name in (None, "megatron") and index.is_file():
        return "megatron", [index]
    if not path.is_file():
        raise DataError("does not exist", path)
    name = name or next((one for one in known if path.name.endswith(named(one).SUFFIX)), None)
    if name is None:
        raise DataError(f"has a name of no known format; say which with --format {'|'.join(known)}", path)
    return name, [path]


def integer_type(name: str, path: Path) -> str:
    """The name of an integer type, checked. Raises DataError."""
    known = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    if name not in known:
        raise DataError(f"has ids of type {name}, which is none of {', '.join(known)}", path)
    return name

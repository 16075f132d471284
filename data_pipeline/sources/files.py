"""Files by path or by URL: opening them, and searching folders and patterns in an order that no machine changes."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from data_pipeline.errors import DataError
from data_pipeline.sources.base import File, ReadOptions
from data_pipeline.stream.store import connect, is_url

_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "created")
"""How the stores of fsspec call what changes with the content of a file, the surest first."""


def open_file(path: str) -> BinaryIO:
    """Opens a local file or a URL for reading."""
    if not is_url(path):
        return open(path, "rb")
    system, inside = connect(path)
    return cast(BinaryIO, system.open(inside, "rb"))


def local_file(path: str | Path) -> File:
    """A file of the local file system, as it is now."""
    found = os.stat(path)
    return File(str(path), found.st_size, str(found.st_mtime_ns))


def stored_file(url: str, info: Mapping[str, Any]) -> File:
    """A file of a store by what fsspec tells about it."""
    return File(url, int(info["size"]), next((str(info[name]) for name in _VERSIONS if info.get(name)), ""))


def is_pattern(name: str) -> bool:
    """Whether a name that is no file itself stands for several: it holds *, ? or [."""
    return glob.has_magic(name)


def match_files(pattern: str, options: ReadOptions, passed_over: Set[str] = frozenset()) -> list[File]:
    """The files that a pattern stands for, sorted; `**` goes through folders, hidden files are passed over.

    passed_over: folders as in `find_units`.
    """
    if is_url(pattern):
        system, inside = connect(pattern)
        folder = re.split(r"[*?[]", inside)[0].rpartition("/")[0]
        found = [
            stored_file(system.unstrip_protocol(path), info)
            for path, info in system.glob(inside, detail=True).items()
            if info["type"] == "file" and "/." not in path.removeprefix(folder)
        ]
    else:
        matches = (path for path in glob.glob(pattern, recursive=True) if not _within(path, passed_over))
        found = [local_file(path) for path in matches if os.path.isfile(path)]
    return sorted(file for file in found if _wanted(os.path.basename(file.path), file.path, options, ("",)))


def search_folder(
    name: str, options: ReadOptions, endings: tuple[str, ...], passed_over: Set[str] = frozenset()
) -> list[File]:
    """Files below a folder, sorted by their path in it: those with known endings unless --include says otherwise.

    Hidden files and folders, and links to folders, are passed over; so are the folders in `passed_over`.
    """
    found = _below_url(name, options) if is_url(name) else _below_path(name, options, passed_over)
    chosen = (entry for entry in found if _wanted(entry[0].rpartition("/")[2], entry[0], options, endings))
    return [file for _, file in sorted(chosen)]


def _below_path(name: str, options: ReadOptions, passed_over: Set[str]) -> Iterator[tuple[str, File]]:
    root = Path(name)
    for folder, subfolders, names in os.walk(root, onerror=_not_searched):
        subfolders[:] = [
            name
            for name in subfolders
            if not (_passed_over(name, options) or _within(os.path.join(folder, name), passed_over))
        ]
        for file in names:
            path = Path(folder, file)
            if path.is_file():
                yield path.relative_to(root).as_posix(), local_file(path)


def _not_searched(error: OSError) -> NoReturn:
    """os.walk would leave the folder out without a word."""
    raise DataError(f"cannot be searched: {error.strerror}; leave it out with --exclude", error.filename) from None


def _below_url(name: str, options: ReadOptions) -> Iterator[tuple[str, File]]:
    system, root = connect(name)
    for path, info in system.find(root, detail=True).items():
        inside = path.removeprefix(root).strip("/")
        if not any(_passed_over(folder, options) for folder in inside.split("/")[:-1]):
            yield inside, stored_file(system.unstrip_protocol(path), info)


def _within(path: str, folders: Set[str]) -> bool:
    """Whether a path is one of some folders, given by real paths, or lies below one."""
    if not folders:
        return False
    real = Path(os.path.realpath(path))
    return not folders.isdisjoint(map(str, (real, *real.parents)))


def _passed_over(folder: str, options: ReadOptions) -> bool:
    return folder.startswith(".") or _matches(folder, options.exclude)


def _wanted(name: str, relative: str, options: ReadOptions, endings: tuple[str, ...]) -> bool:
    if name.startswith(".") or _matches(name, options.exclude) or _matches(relative, options.exclude):
        return False
    if options.include:
        return _matches(name, options.include) or _matches(relative, options.include)
    return name.lower().endswith(endings)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)

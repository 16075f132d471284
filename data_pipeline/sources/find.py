"""From what the user typed to parts that can be read: folders are searched, kinds are told by file name endings."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from types import ModuleType

import data_pipeline.sources
from data_pipeline.errors import DataError
from data_pipeline.sources import huggingface, text
from data_pipeline.sources.base import File, Part, ReadOptions


def find_parts(name: str, options: ReadOptions) -> list[Part]:
    """The parts of one input, in an order that does not depend on the machine. Raises DataError if there is nothing."""
    path = Path(name)
    if path.is_dir() and huggingface.is_saved(path):
        return huggingface.saved_parts(path, options)
    if path.is_dir():
        files = list(_search(path, options))
        if not files:
            wanted = f"that match --include {' '.join(options.include)}" if options.include else "with known endings"
            raise DataError(f"holds no files {wanted}; see --include and --exclude", path)
        return list(_parts_of_files(files, options))
    if path.exists():
        return list(_parts_of_files([File(name, path.stat().st_size)], options))
    if path.suffix or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise DataError("does not exist", path)
    return huggingface.hub_parts(name, options)


def _parts_of_files(files: list[File], options: ReadOptions) -> Iterator[Part]:
    """Neighbours of one kind together, so that the order of the files is kept."""
    readers = list(_readers())
    for reader, run in groupby(files, key=lambda file: _reader_of(file.path, readers)):
        yield from reader.parts(list(run), options)


def _search(root: Path, options: ReadOptions) -> Iterable[File]:
    """Files below a folder, sorted by their path; hidden ones, and links to folders, are passed over."""
    endings = tuple(ending for reader in _readers() for ending in reader.ENDINGS)
    found = []
    for folder, subfolders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        subfolders[:] = [
            name for name in subfolders if not name.startswith(".") and not _matches(name, options.exclude)
        ]
        for name in names:
            relative = name if inside == "." else f"{inside}/{name}"
            wanted = _either(name, relative, options.include) if options.include else name.lower().endswith(endings)
            if wanted and not name.startswith(".") and not _either(name, relative, options.exclude):
                found.append(relative)
    return (File(str(root / name), (root / name).stat().st_size) for name in sorted(found) if (root / name).is_file())


def _either(name: str, relative: str, patterns: tuple[str, ...]) -> bool:
    return _matches(name, patterns) or _matches(relative, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _readers() -> Iterator[ModuleType]:
    """The modules of this package that read files: those with ENDINGS and parts(files, options)."""
    for info in pkgutil.iter_modules(data_pipeline.sources.__path__):
        module = importlib.import_module(f"data_pipeline.sources.{info.name}")
        if hasattr(module, "ENDINGS"):
            yield module


def _reader_of(path: str, readers: list[ModuleType]) -> ModuleType:
    """By the longest ending that fits; what nobody knows is text."""
    fits = [(len(ending), reader) for reader in readers for ending in reader.ENDINGS if path.lower().endswith(ending)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else text

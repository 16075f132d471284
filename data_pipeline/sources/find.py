"""From what the user typed to units: folders are searched, kinds are told by file name endings."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from pathlib import Path
from types import ModuleType

import data_pipeline.sources
from data_pipeline.errors import DataError
from data_pipeline.sources import huggingface, text
from data_pipeline.sources.base import File, ReadOptions, Unit
from data_pipeline.sources.files import is_pattern, local_file, match_files, search_folder, stored_file
from data_pipeline.stream.store import connect, is_url

_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
"""What the hub, which is slow to answer that it does not know a name, may know."""


def find_units(
    inputs: Sequence[str], options: ReadOptions, unit_bytes: int, passed_over: Set[str] = frozenset()
) -> list[list[Unit]]:
    """The units of each input, in an order that does not depend on the machine; those of one file are neighbours.

    An input is a file, a folder, a pattern (`crawl/**/*.jsonl.zst`), a URL of any of these that fsspec knows, a folder
    made by `save_to_disk`, or the name of a Hugging Face data set. passed_over: real paths of folders whose files no
    folder or pattern stands for. Raises DataError for one that gives nothing.
    """
    return [_units(name, options, unit_bytes, passed_over) for name in inputs]


def without_effect(inputs: Sequence[str], options: ReadOptions) -> list[str]:
    """What is wrong with options that no input asks for: a sentence for each."""
    kinds = {"hub" if options.streaming else _kind(name) for name in inputs}
    problems = []
    if options.split and not kinds & {"saved", "hub"}:
        problems.append(f"--split {options.split} has no effect: no input is a Hugging Face data set; remove it")
    if options.config and "hub" not in kinds:
        problems.append(f"--config {options.config} has no effect: no input is a data set of the hub; remove it")
    for name, patterns in (("include", options.include), ("exclude", options.exclude)):
        if patterns and "files" not in kinds:
            problems.append(f"--{name} has no effect: no input is a folder that is there, or a pattern; remove it")
    return problems


def _kind(name: str) -> str:
    """file; files, which may be several; saved or hub: a data set. Nothing of a store is asked for it."""
    path = Path(name)
    if path.is_file():
        return "file"
    if huggingface.is_saved(path):
        return "saved"
    return "files" if path.is_dir() or is_url(name) or is_pattern(name) else "hub"


def _units(name: str, options: ReadOptions, unit_bytes: int, passed_over: Set[str]) -> list[Unit]:
    if options.streaming:
        return huggingface.streamed_units(name, options)
    files = None if huggingface.is_saved(Path(name)) else _files(name, options, passed_over)
    if files is None:
        return huggingface.dataset_units(name, options, unit_bytes)
    return list(_units_of_files(files, options, unit_bytes))


def _files(name: str, options: ReadOptions, passed_over: Set[str]) -> list[File] | None:
    """The files of an input; None for what may be a name on the hub."""
    path = Path(name)
    if path.is_file():
        return [local_file(name)]
    if path.is_dir() or (is_url(name) and not is_pattern(name)):
        return _folder_or_url(name, options, passed_over)
    if is_pattern(name):
        return match_files(name, options, passed_over) or _nothing(name, options, "matches no files")
    if path.suffix or not _HUB_NAME.fullmatch(name):
        raise DataError("does not exist", name)
    return None


def _folder_or_url(name: str, options: ReadOptions, passed_over: Set[str]) -> list[File]:
    if is_url(name):
        system, inside = connect(name)
        if not system.exists(inside):
            raise DataError("does not exist", name)
        if system.isfile(inside):
            return [stored_file(name, system.info(inside))]
    endings = tuple(ending for reader in _readers() for ending in reader.ENDINGS)
    return search_folder(name, options, endings, passed_over) or _nothing(name, options, "holds no files")


def _nothing(name: str, options: ReadOptions, said: str) -> list[File]:
    wanted = f"that match --include {' '.join(options.include)}" if options.include else "with known endings"
    raise DataError(f"{said} {wanted}; see --include and --exclude", name)


def _units_of_files(files: list[File], options: ReadOptions, unit_bytes: int) -> Iterator[Unit]:
    """Neighbours of one kind together, so that the order of the files is kept."""
    readers = list(_readers())
    for reader, run in groupby(files, key=lambda file: _reader_of(file.path, readers)):
        yield from reader.units(list(run), options, unit_bytes)


def _readers() -> Iterator[ModuleType]:
    """The modules of this package that read files: those with ENDINGS and units(files, options, unit_bytes)."""
    for info in pkgutil.iter_modules(data_pipeline.sources.__path__):
        module = importlib.import_module(f"data_pipeline.sources.{info.name}")
        if hasattr(module, "ENDINGS"):
            yield module


def _reader_of(path: str, readers: list[ModuleType]) -> ModuleType:
    """By the longest ending that fits; what nobody knows is text."""
    fits = [(len(ending), reader) for reader in readers for ending in reader.ENDINGS if path.lower().endswith(ending)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else text

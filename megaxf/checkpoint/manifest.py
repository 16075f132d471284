"""The last file of a checkpoint: size and checksum of each other. Where it is, all others are whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import Entry, Place

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
CHUNK = 1 << 20


class Contents(NamedTuple):
    """What a manifest says."""

    files: dict[str, Entry]
    """By name within the checkpoint."""
    written: datetime
    """When all of them were there."""


def describe(path: Place, advance: Callable[[int], object] = lambda size: None, *, last: bool = False) -> Entry:
    """Size and checksum of a file, read in pieces, of whose sizes `advance` is told.

    last: nobody reads it soon after, so it is read from the disk itself, and the system's cache is left to others.
    """
    checksum = xxhash.xxh3_128()
    size = 0
    for block in files.blocks_from_disk(path) if last and isinstance(path, Path) else _blocks(path):
        checksum.update(block)
        size += len(block)
        advance(len(block))
    return Entry(size, checksum.hexdigest())


def _blocks(path: Place) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    with files.reading(path) as file:
        while count := file.readinto(buffer):  # type: ignore[attr-defined]
            yield buffer[:count]


def write_manifest(folder: Place, entries: Mapping[str, Entry]) -> None:
    """Say what a folder holds, when all of it is there."""
    listed = {name: entry._asdict() for name, entry in sorted(entries.items())}
    written = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"format_version": FORMAT_VERSION, "written": written, "files": listed}
    files.write_bytes(folder / MANIFEST, json.dumps(content | {"checksum": _checksum(content)}, indent=1).encode())


def _checksum(content: Mapping[str, Any]) -> str:
    """Of what a manifest says, without its own checksum."""
    said = {key: value for key, value in content.items() if key != "checksum"}
    return xxhash.xxh3_128(json.dumps(said, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Place) -> dict[str, Entry]:
    """The files of a checkpoint by name. Raises as `read_contents` does."""
    return read_contents(folder).files


def read_contents(folder: Place) -> Contents:
    """What the manifest of a checkpoint says.

    Raises DamagedCheckpoint where there is no readable manifest, CheckpointError for a format of another version.
    """
    path = folder / MANIFEST
    if MANIFEST not in files.names(folder):
        raise DamagedCheckpoint(f"{path} is missing: saving {folder.name} was interrupted")
    try:
        content: dict[str, Any] = json.loads(files.read_bytes(path))
        if content.get("checksum") != _checksum(content):
            raise ValueError("it is not what was written: its checksum differs")
        version = content["format_version"]
        written = datetime.fromisoformat(content["written"])
        entries = {name: Entry(int(entry["size"]), str(entry["xxh3_128"])) for name, entry in content["files"].items()}
    except CheckpointError:  # which is a ValueError, too
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version = {version}, and this megaxf reads {FORMAT_VERSION}; "
            "load the checkpoint with the megaxf that wrote it"
        )
    return Contents(entries, written)


def check_sizes(folder: Place) -> dict[str, Entry]:
    """The manifest, with every file of it there in its full size; cheap.

    Raises as `read_manifest` does, and DamagedCheckpoint naming a file that is gone or cut.
    """
    entries = read_manifest(folder)
    found = files.sizes(folder)
    for name, entry in entries.items():
        if name not in found:
            raise DamagedCheckpoint(f"{folder / name} is missing")
        if found[name] != entry.size:
            raise DamagedCheckpoint(f"{folder / name} has {found[name]} bytes, {entry.size} were written")
    return entries


def read_file(folder: Place, name: str) -> bytes:
    """A small file of a checkpoint, as it was written. Raises DamagedCheckpoint naming it where it is not."""
    check_contents(folder, [name], read_manifest(folder))
    return files.read_bytes(folder / name)


def check_contents(folder: Place, names: Iterable[str], entries: Mapping[str, Entry], *, last: bool = False) -> None:
    """Compare files with their checksums, read as by `describe`. Raises DamagedCheckpoint naming one that differs."""
    for name in names:
        if name not in entries:
            raise DamagedCheckpoint(f"{folder / name} is missing")
        if describe(folder / name, last=last) != entries[name]:
            raise DamagedCheckpoint(f"{folder / name} is not what was written: its checksum differs")

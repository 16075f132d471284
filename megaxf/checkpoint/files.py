"""Files that stay: written through to the disk, and described by a manifest of sizes and checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
CHUNK = 1 << 23


class Entry(NamedTuple):
    """One file as it was written."""

    size: int
    """Bytes."""
    xxh3_128: str


def sync_folder(folder: Path) -> None:
    """Make the names in a folder permanent."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file through to the disk, its folder made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def describe(path: Path) -> Entry:
    """Size and checksum of a file, read in pieces."""
    checksum = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            checksum.update(piece)
            size += len(piece)
    return Entry(size, checksum.hexdigest())


def write_manifest(folder: Path, entries: dict[str, Entry]) -> None:
    """The last file of a checkpoint: where it is, all others are whole."""
    files = {name: entry._asdict() for name, entry in sorted(entries.items())}
    content = {"format_version": FORMAT_VERSION, "files": files}
    write_bytes(folder / MANIFEST, json.dumps(content, indent=1).encode())


def read_manifest(folder: Path) -> dict[str, Entry]:
    """The files of a checkpoint by name.

    Raises DamagedCheckpoint where there is no readable manifest, CheckpointError for a format of another version.
    """
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        version, files = content["format_version"], content["files"]
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path} is missing: saving {folder.name} was interrupted") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} is not a manifest: {error}") from None
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version = {version}, and this megaxf reads {FORMAT_VERSION}; "
            "load the checkpoint with the megaxf that wrote it"
        )
    return {name: Entry(int(entry["size"]), str(entry["xxh3_128"])) for name, entry in files.items()}


def check_sizes(folder: Path) -> dict[str, Entry]:
    """The manifest, with every file of it there in its full size; cheap.

    Raises as `read_manifest` does, and DamagedCheckpoint naming a file that is gone or cut.
    """
    entries = read_manifest(folder)
    for name, entry in entries.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpoint(f"{path} is missing")
        if path.stat().st_size != entry.size:
            raise DamagedCheckpoint(f"{path} has {path.stat().st_size} bytes, {entry.size} were written")
    return entries


def check_contents(folder: Path, names: Iterable[str], entries: dict[str, Entry]) -> None:
    """Compare files with their checksums. Raises DamagedCheckpoint naming the first that differs."""
    for name in names:
        if describe(folder / name) != entries[name]:
            raise DamagedCheckpoint(f"{folder / name} is not what was written: its checksum differs")

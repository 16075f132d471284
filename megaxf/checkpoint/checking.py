"""Reads every byte of a checkpoint and names what is not as it was written, all of it in `megaxf checkpoint verify`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import Entry, Place
from megaxf.checkpoint.manifest import MANIFEST, check_contents, check_sizes, describe, read_manifest
from megaxf.checkpoint.ranks import on_first, together
from megaxf.parallel.mesh import Mesh


class Fault(NamedTuple):
    """A file that is not as it was written."""

    file: str
    """Within the checkpoint."""
    reason: str


def bytes_to_read(path: Place) -> int:
    """Bytes of all files of a checkpoint that are there."""
    return sum(files.sizes(path).values())


def verify(path: Place, mesh: Mesh) -> None:
    """See that a checkpoint is what was written, to the last byte; collective, each rank reads a share of the files.

    Raises DamagedCheckpoint on every rank where one file is not.
    """
    entries = on_first(mesh, lambda: check_sizes(path))
    together(mesh, lambda: check_contents(path, sorted(entries)[mesh.rank :: mesh.world_size], entries, last=True))


def find_faults(path: Place, threads: int, advance: Callable[[int], object]) -> list[Fault]:
    """Every file of a checkpoint that is missing, cut, altered or unreadable; of several, so many are read at once.

    advance: is told the bytes read, from any thread. Raises CheckpointError for a manifest of another version.
    """
    try:
        entries = read_manifest(path)
    except DamagedCheckpoint as error:
        return [Fault(MANIFEST, str(error).removeprefix(f"{path / MANIFEST} "))]
    there = files.sizes(path)

    def check(name: str, entry: Entry) -> Fault | None:
        if name not in there:
            return Fault(name, "is missing")
        if there[name] != entry.size:
            advance(there[name])
            return Fault(name, f"has {there[name]} bytes, {entry.size} were written")
        try:
            found = describe(path / name, advance, last=True)
        except CheckpointError as error:
            return Fault(name, str(error).removeprefix(f"{path / name} "))
        return None if found == entry else Fault(name, "is not what was written: its checksum differs")

    with ThreadPoolExecutor(threads) as pool:
        return [fault for fault in pool.map(lambda one: check(*one), entries.items()) if fault]

"""How a folder becomes a checkpoint and ceases to be one; at any moment of it, what was whole before is whole.

On a disk a checkpoint is written under a temporary name and renamed when it is whole, and loses its name before the
first of its files is removed. A store cannot rename: there the manifest is what is written last and removed first, and
a folder without one is what an interrupted save or removal left.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePosixPath

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Entry, Place
from megaxf.checkpoint.finding import NAME, REPLACED, list_checkpoints
from megaxf.checkpoint.manifest import MANIFEST, write_manifest

TEMPORARY = re.compile(r"\.step-\d{8,}\.(replaced\.)?tmp-.*")


def begin(final: Place, needed: int) -> Place:
    """An empty folder to write the checkpoint `final` into; what interrupted saves and removals left is cleared first.

    needed: bytes. Raises CheckpointError where the disk has fewer.
    """
    files.make_folder(final.parent)
    clear(final.parent)
    if said := files.shortage(final.parent, needed):
        raise CheckpointError(
            f"{final} {said}; make room, keep fewer checkpoints (checkpoint.keep_last) or choose another run_folder"
        )
    if files.is_local(final):
        working = final.with_name(f".{final.name}.tmp-{uuid.uuid4().hex[:8]}")
        files.make_folder(working)
        return working
    if files.is_folder(final):
        remove(final)
    return final


def publish(working: Place, final: Place, entries: Mapping[str, Entry]) -> None:
    """Make a checkpoint of a folder in which all files are written. One of the same step is replaced by it."""
    write_manifest(working, entries)
    if files.is_local(working):
        for inner in {parent for name in entries for parent in PurePosixPath(name).parents}:
            files.sync_folder(working / inner)
        old = final.with_name(f".{final.name}.replaced")
        if files.is_folder(final):
            files.rename(final, old)
        files.rename(working, final)
        if files.is_folder(old):
            remove(old)


def give_up(working: Place) -> None:
    """Remove what was written where it is of no use; what cannot be removed now is cleared by the next save."""
    with suppress(CheckpointError):
        files.remove_folder(working, MANIFEST)


def rotate(folder: Place, newest: int, keep_last: int, keep_every: int | None = None) -> None:
    """Remove complete checkpoints before the last `keep_last` of those up to step `newest`.

    keep_every: steps that are multiples of it stay. So do steps beyond `newest`, which stem from a past that was given
    up, and incomplete ones.
    """
    complete = [listed for listed in list_checkpoints(folder) if listed.fault is None and listed.step <= newest]
    for listed in complete[:-keep_last]:
        if not keep_every or listed.step % keep_every:
            remove(listed.path)


def remove(path: Place) -> None:
    """Delete a checkpoint so that no half of it is ever taken for one."""
    if files.is_local(path):
        doomed = path.with_name(f".{path.name.strip('.')}.tmp-removed")
        if files.is_folder(doomed):
            files.remove_folder(doomed, MANIFEST)
        files.rename(path, doomed)
        path = doomed
    files.remove_folder(path, MANIFEST)


def clear(folder: Place) -> None:
    """Delete what interrupted saves and removals left, and give back its name to what was to be replaced."""
    for name in files.names(folder):
        path = folder / name
        unfinished = NAME.fullmatch(name) and not files.is_local(path) and MANIFEST not in files.names(path)
        if TEMPORARY.fullmatch(name) or unfinished:
            files.remove_folder(path, MANIFEST)
        elif replaced := REPLACED.fullmatch(name):
            if files.is_folder(folder / replaced[1]):
                remove(path)
            else:
                files.rename(path, folder / replaced[1])

"""All that a checkpoint does with files: on disks, and in any store that fsspec knows (`s3://`, `gs://`, `memory://`).

On a disk, what is written is through to the disk when a call returns, and a folder gets its name when it is whole. A
store knows no folders and renames none: there an object is whole or not there, and what makes a checkpoint of objects
is its last one, the manifest. Credentials and options of a store are found by its own library and by fsspec's
configuration (`FSSPEC_S3_ENDPOINT_URL=...`).

Other modules call these functions as `files.rename(...)`: tests put faults in their place.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import xxhash
from upath import UPath

from data_pipeline import disk
from megaxf.checkpoint.direct import DirectFile, read_blocks
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint

PIECE_BYTES = 1 << 19
Place = Path | UPath
"""A file or folder on a disk or in a store."""


class Entry(NamedTuple):
    """One file as it was written."""

    size: int
    """Bytes."""
    xxh3_128: str


class Stream(io.RawIOBase):
    """A file that is being written; measures what goes by."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._checksum, self._size = file, xxhash.xxh3_128(), 0
        self.failure: OSError | None = None
        """Of a write, for callers that make something else of it."""

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def write(self, content: Any) -> int:
        """Append bytes; gives their number."""
        view = memoryview(content).cast("B")
        try:
            # In pieces that are still in the CPU's cache when the checksum comes to them.
            for start in range(0, view.nbytes, PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                self._file.write(piece)
                self._checksum.update(piece)
        except OSError as error:
            self.failure = error
            raise
        self._size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes so far."""
        return self._size

    def sync(self) -> None:
        """Wait until the disk has all of it."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def entry(self) -> Entry:
        """Size and checksum of what was written."""
        return Entry(self._size, self._checksum.hexdigest())


def place(name: str | PathLike[str] | UPath) -> Place:
    """The place of a path or URL. Raises CheckpointError for a store that is not known or not installed."""
    try:
        found = UPath(name)
    except (ImportError, ValueError) as error:
        extra = '; run pip install "megaxf[s3]"' if str(name).startswith("s3://") else ""
        raise CheckpointError(f"{name} cannot be opened: {error}{extra}") from None
    return Path(found.path) if found.protocol in ("", "file", "local") else found


def is_local(path: Place) -> bool:
    """Whether a place is on a disk, where folders have names of their own."""
    return isinstance(path, Path)


def no_folder(path: Place) -> Path | None:
    """What stands where a path, or one above it, would be a folder and is none; None where nothing does, or no disk."""
    if not isinstance(path, Path):
        return None
    return next((each for each in (path, *path.parents) if os.path.lexists(each) and not os.path.isdir(each)), None)


def make_folder(path: Place) -> None:
    """Make a folder and those above it where missing; in a store there is nothing to make."""
    if isinstance(path, Path):
        with _naming(path, "cannot be made", new=True):
            path.mkdir(parents=True, exist_ok=True)


def try_writing(folder: Place) -> None:
    """Make a folder, and a small file in it that is removed again. Raises CheckpointError where that cannot be done."""
    make_folder(folder)
    probe = folder / f".probe-{uuid.uuid4().hex[:8]}"
    write_bytes(probe, b"may be removed")
    remove_file(probe)


@contextmanager
def writing(path: Place) -> Iterator[Stream]:
    """A new file, its folder made where missing, through to the disk in the end. Raises CheckpointError naming it."""
    make_folder(path.parent)
    with _naming(path, "cannot be written", new=True), _new(path) as file:
        stream = Stream(file)
        try:
            yield stream
        except Exception:
            if stream.failure:  # of which torch.save makes a complaint about a position
                raise stream.failure from None
            raise
        if isinstance(path, Path):
            stream.sync()


def write_bytes(path: Place, content: bytes) -> Entry:
    """Write a whole file as `writing` does."""
    with writing(path) as stream:
        stream.write(content)
    return stream.entry()


@contextmanager
def reading(path: Place) -> Iterator[BinaryIO]:
    """An open file. Raises DamagedCheckpoint where it is missing or the disk fails, else CheckpointError; naming it."""
    with _naming(path, "cannot be read"), path.open("rb") as file:
        yield file


def read_bytes(path: Place) -> bytes:
    """A whole file, as `reading` does."""
    with reading(path) as file:
        return file.read()


def blocks_from_disk(path: Path) -> Iterator[memoryview]:
    """What the disk has of a file, not the system's cache, in blocks that hold until the next; as `reading`."""
    with _naming(path, "cannot be read"):
        yield from read_blocks(path)


def sync_folder(path: Place) -> None:
    """Make the names in a folder permanent."""
    if isinstance(path, Path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(source: Place, target: Place) -> None:
    """Give a file another name in its folder, permanently; or a folder, on a disk only."""
    with _naming(source, f"cannot be renamed to {target.name}"):
        source.rename(target)  # type: ignore[arg-type]
        sync_folder(target.parent)


def remove_file(path: Place) -> None:
    """Delete a file."""
    with _naming(path, "cannot be removed"):
        path.unlink()


def remove_folder(path: Place, first: str) -> None:
    """Delete a folder with all that is in it, the file `first` before any other: without it nothing looks whole."""
    for name in sorted(sizes(path), key=lambda name: name != first):
        remove_file(path / name)
    if isinstance(path, Path):
        with _naming(path, "cannot be removed"):
            shutil.rmtree(path)


def names(folder: Place) -> list[str]:
    """What lies in a folder, sorted; empty where it is not there."""
    if isinstance(folder, Path):
        return sorted(os.listdir(folder)) if folder.is_dir() else []
    folder.fs.invalidate_cache()
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def sizes(folder: Place) -> dict[str, int]:
    """Bytes of each file in a folder and below, by relative name, sorted; empty where it is not there."""
    if isinstance(folder, Path):
        found = {
            path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }
    else:
        folder.fs.invalidate_cache()
        within: dict[str, Any] = {}
        with suppress(FileNotFoundError):  # no such bucket
            within = folder.fs.find(folder.path, detail=True)
        found = {path.removeprefix(folder.path).lstrip("/"): entry["size"] for path, entry in within.items()}
    return dict(sorted(found.items()))


def is_folder(path: Place) -> bool:
    """Whether there is a folder of that name; in a store, whether any object is below it."""
    return path.is_dir()


def shortage(folder: Place, needed: int) -> str | None:
    """How far the disk of a folder is too small for `needed` bytes; None where it is not. A store has no end."""
    return disk.shortage(folder, needed) if isinstance(folder, Path) else None


def _new(path: Place) -> Any:
    """A new file, open to be written."""
    return DirectFile(path) if isinstance(path, Path) else path.open("wb")


@contextmanager
def _naming(path: Place, what: str, *, new: bool = False) -> Iterator[None]:
    """Failures of the operating system as errors that name the file. new: it need not be there."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not new:
            raise DamagedCheckpoint(f"{path} is missing") from None
        kind = DamagedCheckpoint if error.errno == errno.EIO else CheckpointError
        raise kind(f"{path} {what}: {error.strerror or error}") from error

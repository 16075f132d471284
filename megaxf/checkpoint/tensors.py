"""Tensors by name in files of the format of torch.distributed.checkpoint (DCP), as boxes that any layout can read.

    with BoxWriter(folder, rank) as writer:             # a rank writes its boxes, and talks to no other
        writer.put(key, whole_shape, offsets, values)
    write_contents(folder, stored)                      # one rank adds the table of contents, from what all have stored

    tensors = TensorFiles(folder)
    tensors.fill(key, offsets, values)                  # a box of whatever was saved as whatever boxes

DCP's own writer would copy each view once more and read a file again for its checksum, and its own reader loads every
saved box whole; its format is a zip file for each box, one behind the other, as torch.save makes them.

DCP keeps its table of contents as a pickle. It is read here by an unpickler that knows the classes of that table and
nothing else, and of the zip files only the numbers are read, so that a checkpoint cannot run code.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.utils.serialization import config

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Entry, Place, Stream

_settings: Any = config
CONTENTS = ".metadata"
MASTER = "/master"
"""What follows a parameter's name in the key of its weights."""
FILE_BYTES = 1 << 32
"""A file that has more is followed by another, so that many ranks can share the reading of what one has written."""
NUMBERS, LOCAL_HEADER = "archive/data/0", 30
"""In the zip file of a box: the name of its numbers, and the bytes of the header before that name."""
BLOCK_BYTES = 1 << 26
"""What is on its way to a GPU at a time."""
METADATA_CLASSES = {
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
}
OTHER_CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
}


class Stored(NamedTuple):
    """Where a box of a tensor lies."""

    key: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class BoxWriter:
    """The files of one rank: weights in some and moments in others, since who only wants weights reads no moments."""

    def __init__(self, folder: Place, rank: int) -> None:
        self._folder, self._rank, self._open = folder, rank, ExitStack()
        self._streams: dict[bool, tuple[str, Stream]] = {}
        self._all: dict[str, Stream] = {}
        self.stored: list[Stored] = []

    def put(self, key: str, shape: Sequence[int], offsets: Sequence[int], values: torch.Tensor) -> None:
        """Append a box, fp32, of a tensor. Raises CheckpointError naming the file that cannot be written."""
        name, stream = self._stream(key.endswith(MASTER))
        start = stream.tell()
        # The numbers alone: saving a view would save all that it is a view of.
        numbers = torch.from_numpy(values.detach().cpu().contiguous().numpy())
        with _settings.patch("save.compute_crc32", False):  # twice the time; there is a checksum of the file
            torch.save(numbers, stream)  # type: ignore[arg-type]
        box = tuple(offsets), tuple(values.shape)
        self.stored.append(Stored(key, tuple(shape), *box, name, start, stream.tell() - start))

    def _stream(self, weights: bool) -> tuple[str, Stream]:
        found = self._streams.get(weights)
        if found is None or found[1].tell() > FILE_BYTES:
            name = f"__{self._rank}_{len(self._all)}.distcp"
            stream = self._open.enter_context(files.writing(self._folder / name))
            found = self._streams[weights] = name, stream
            self._all[name] = stream
        return found

    def entries(self) -> dict[str, Entry]:
        """Size and checksum of each file, by name, of what went into it."""
        return {name: stream.entry() for name, stream in self._all.items()}

    def __enter__(self) -> BoxWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def write_contents(folder: Place, stored: Iterable[Stored]) -> Entry:
    """Write the table of contents of all boxes. Raises CheckpointError where they do not make up their tensors."""
    tensors: dict[str, Any] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    properties = dcp_metadata.TensorProperties(dtype=torch.float32)
    for one in stored:
        shape, offsets, sizes = torch.Size(one.shape), torch.Size(one.offsets), torch.Size(one.sizes)
        found = tensors.setdefault(one.key, TensorStorageMetadata(properties, shape, []))
        places[MetadataIndex(one.key, offsets, len(found.chunks))] = _StorageInfo(one.file, one.start, one.length)
        found.chunks.append(ChunkStorageMetadata(offsets, sizes))
    for key, found in tensors.items():
        if sum(chunk.sizes.numel() for chunk in found.chunks) != found.size.numel():
            raise CheckpointError(f"the ranks have not written all of {key}, or some of it twice: a fault of megaxf's")
    contents = dcp_metadata.Metadata(
        tensors, storage_data=places, storage_meta=dcp_metadata.StorageMeta(), version=CURRENT_DCP_VERSION
    )
    return files.write_bytes(folder / CONTENTS, pickle.dumps(contents))


class TensorFiles:
    """The tensors of a folder, by key, and boxes of them; the table of contents is read once.

    contents: the table, where the caller has read it. Raises CheckpointError where it is not one.
    """

    def __init__(self, folder: Place, contents: bytes | None = None):
        path = folder / CONTENTS
        table = _parse(files.read_bytes(path) if contents is None else contents, path)
        self._folder, self._places = folder, table.storage_data
        self._tensors: Mapping[str, Any] = {**table.state_dict_metadata}
        self.shapes: dict[str, torch.Size] = {key: entry.size for key, entry in self._tensors.items()}

    def read(self, key: str) -> torch.Tensor:
        """One whole fp32 tensor; raises KeyError for an unknown key."""
        whole = torch.empty(self.shapes[key], dtype=torch.float32)
        self.fill(key, [0] * whole.dim(), whole)
        return whole

    def files_of(self, key: str, offsets: Sequence[int], sizes: Sequence[int]) -> set[str]:
        """The names of the files in which a box of a tensor lies."""
        return {self._places[item.storage_index].relative_path for item in self._items(key, offsets, sizes)}

    def fill(self, key: str, offsets: Sequence[int], values: torch.Tensor) -> None:
        """Read the box that begins at `offsets` and has the size of `values` into it, and no more than that.

        Raises CheckpointError where a file does not hold what the table of contents says.
        """
        for item in self._items(key, offsets, values.shape):
            place = self._places[item.storage_index]
            with files.reading(self._folder / place.relative_path) as file:
                saved = self._saved_sizes(item)
                try:
                    begin = _numbers(file, place, 4 * math.prod(saved))
                except RuntimeError as error:
                    where = self._folder / place.relative_path
                    raise CheckpointError(f"{key} does not lie in {where}: {error}") from None
                for first, block in _blocks(values[_slices(item.dest_offsets, item.lengths)]):
                    at = (item.storage_offsets[0] + first, *item.storage_offsets[1:])
                    _read_box(file, begin, saved, at, block)

    def _items(self, key: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[ReadItem]:
        """What of which saved box is needed, by DCP's arithmetic."""
        wanted = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        return create_read_items_for_chunk_list(key, self._tensors[key], [wanted])

    def _saved_sizes(self, item: ReadItem) -> torch.Size:
        index = item.storage_index
        sizes: torch.Size = self._tensors[index.fqn].chunks[index.index].sizes
        return sizes


def _slices(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))


def _numbers(file: BinaryIO, place: _StorageInfo, size: int) -> int:
    """Where in the file the numbers of a saved box begin, `size` bytes as they are in memory; raises RuntimeError."""
    try:
        entry = zipfile.ZipFile(_Part(file, place)).getinfo(NUMBERS)
    except (zipfile.BadZipFile, KeyError) as error:
        raise RuntimeError(f"{error}; it should be an archive of torch.save") from None
    if entry.file_size != size:
        raise RuntimeError(f"{entry.file_size} bytes where {size} were saved")
    begin: int = place.offset + entry.header_offset
    file.seek(begin)
    # Name and padding lie between the header and the numbers; the archive's directory does not know of the padding.
    name, padding = struct.unpack_from("<HH", file.read(LOCAL_HEADER), 26)
    return begin + LOCAL_HEADER + int(name) + int(padding)


class _Part(io.RawIOBase):
    """A part of a file, as a file to be read."""

    def __init__(self, file: BinaryIO, place: _StorageInfo) -> None:
        self._file, self._begin, self._size, self._at = file, place.offset, place.length, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As files do."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """As files do."""
        self._file.seek(self._begin + self._at)
        found = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def _blocks(target: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, rows) of a tensor; all at once where they are read to where they belong."""
    rows = len(target)
    step = rows if target.device.type == "cpu" else max(1, BLOCK_BYTES * rows // target.nbytes)
    for first in range(0, rows, step):
        yield first, target[first : first + step]


def _read_box(file: BinaryIO, begin: int, saved: Sequence[int], offsets: Sequence[int], target: torch.Tensor) -> None:
    """Read a box of the numbers that begin at a place of the file, of a tensor of the sizes `saved`."""
    direct = target.device.type == "cpu" and target.is_contiguous()
    buffer = target if direct else torch.empty(target.shape, dtype=torch.float32)
    memory = memoryview(buffer.numpy().reshape(-1).data).cast("B")
    done = 0
    for start, count in _runs(saved, offsets, target.shape):
        file.seek(begin + 4 * start)
        if file.readinto(memory[done : done + 4 * count]) != 4 * count:  # type: ignore[attr-defined]
            raise CheckpointError(f"{getattr(file, 'name', 'a file')} ends too early")
        done += 4 * count
    if not direct:
        target.copy_(buffer)


def _runs(saved: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first element, number) of the runs of a flattened tensor that are a box of it."""
    inner = math.prod(saved[1:])
    if list(sizes[1:]) == list(saved[1:]):
        yield offsets[0] * inner, sizes[0] * inner
        return
    for row in range(offsets[0], offsets[0] + sizes[0]):
        for start, count in _runs(saved[1:], offsets[1:], sizes[1:]):
            yield row * inner + start, count


class _ContentsUnpickler(pickle.Unpickler):
    """Admits the classes of DCP's table of contents and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name; raises CheckpointError for any other than the known."""
        if (module == dcp_metadata.__name__ and name in METADATA_CLASSES) or (module, name) in OTHER_CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module.split(".")[0] == "pathlib" and name.endswith("Path"):
            return PurePosixPath
        raise CheckpointError(f"it names {module}.{name}, which has no place there")


def _parse(content: bytes, path: Place) -> dcp_metadata.Metadata:
    try:
        contents = _ContentsUnpickler(io.BytesIO(content)).load()
    except Exception as error:
        raise CheckpointError(f"{path} is refused as a table of contents: {error}") from None
    if not isinstance(contents, dcp_metadata.Metadata):
        raise CheckpointError(f"{path} is refused as a table of contents: it holds a {type(contents).__name__}")
    return contents

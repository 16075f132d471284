"""Tensors in safetensors files: written and read piece by piece, one file or many with an index.

The format (huggingface/safetensors): 8 bytes of header length, a JSON header of dtype, shape and byte range of each
tensor, then the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from megaxf.convert.casting import DTYPES, to_bytes
from megaxf.convert.errors import ConvertError
from megaxf.convert.json_files import read_json
from megaxf.models.weights import Weights, rows_of_piece

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LABELS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
ALIGNMENT = 8


Create = Callable[[str], AbstractContextManager[Any]]
"""Opens a new file of a name, to be written."""


def write_files(create: Create, weights: Weights, dtype: str, max_bytes: int, writer: int = 0, writers: int = 1) -> int:
    """Write all tensors, in files of at most `max_bytes` (a larger tensor has one alone); gives the bytes of tensors.

    A piece of a tensor is in memory at a time. dtype: one of LABELS. writer: of several who share the files, the first
    of whom writes the index.
    """
    itemsize = DTYPES[dtype].itemsize
    sizes = {name: shape.numel() * itemsize for name, shape in weights.shapes.items()}
    shards = _shards(sizes, max_bytes)
    names = [SINGLE] if len(shards) == 1 else [_shard_name(k, len(shards)) for k in range(1, len(shards) + 1)]
    for name, members in [*zip(names, shards, strict=True)][writer::writers]:
        with create(name) as file:
            _write_file(file, weights, members, dtype)
    if len(shards) > 1 and writer == 0:
        where = {member: name for name, members in zip(names, shards, strict=True) for member in members}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        with create(INDEX) as file:
            file.write(json.dumps(index, indent=1).encode())
    return sum(sizes.values())


def _shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _write_file(file: Any, weights: Weights, names: list[str], dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        shape = weights.shapes[name]
        start, end = end, end + shape.numel() * DTYPES[dtype].itemsize
        header[name] = {"dtype": LABELS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        for piece in weights.pieces(name):
            file.write(to_bytes(name, piece, dtype))


class Part(NamedTuple):
    """Where a tensor lies."""

    file: Path
    start: int
    """Byte of the file."""
    label: str
    """Its dtype, as the format names it."""
    shape: torch.Size


class SafetensorsFolder(Weights):
    """The tensors of a folder by name, each read when asked for.

    Raises ConvertError naming the file that is at fault.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        files = {path.name: _parts(path) for path in sorted(folder.glob("*.safetensors"))}
        self._check(files)
        self._parts = {name: part for parts in files.values() for name, part in parts.items()}
        self.shapes = {name: part.shape for name, part in self._parts.items()}

    def dtype(self, name: str) -> str:
        """Of a tensor, as torch names it. Raises ConvertError where such are not read."""
        part, known = self._parts[name], {label: dtype for dtype, label in LABELS.items()}
        if part.label not in known:
            raise ConvertError(f"{part.file}: {name} has dtype {part.label}; {', '.join(known)} are read")
        return known[part.label]

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor in its own dtype; raises KeyError for an unknown name."""
        return self.rows(name, 0, self.shapes[name][0])

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """One tensor in its own dtype, piece by piece."""
        rows, step = self.shapes[name][0], rows_of_piece(self.shapes[name])
        for first in range(0, rows, step):
            yield self.rows(name, first, min(step, rows - first))

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor in its own dtype; raises KeyError for an unknown name."""
        part = self._parts[name]
        shape = torch.Size([count, *part.shape[1:]])
        dtype = DTYPES[self.dtype(name)]
        start = part.start + first * shape[1:].numel() * dtype.itemsize
        content = np.fromfile(part.file, np.uint8, shape.numel() * dtype.itemsize, offset=start)
        return torch.from_numpy(content).view(dtype).view(shape)

    def _check(self, files: Mapping[str, Mapping[str, Part]]) -> None:
        """Compare the files with the index. Raises ConvertError with all that does not agree."""
        path = self._folder / INDEX
        if not path.is_file():
            if set(files) != {SINGLE}:
                found = ", ".join(files) or "no *.safetensors (pickled weights are not read: they can run code)"
                raise ConvertError(f"{self._folder} needs {SINGLE}, or {INDEX} with its files; found {found}")
            return
        where = read_json(path).get("weight_map")
        if not (isinstance(where, dict) and all(isinstance(file, str) for file in where.values())):
            raise ConvertError(f"{path} has no weight_map, which says in what file each tensor is")
        missing = sorted(set(where.values()) - set(files))
        problems = [f"{name} is missing, with {sum(f == name for f in where.values())} tensors" for name in missing]
        problems += [f"{name} is not in the index" for name in sorted(set(files) - set(where.values()))]
        for file in sorted(set(where.values()) & set(files)):
            listed, held = {name for name, f in where.items() if f == file}, set(files[file])
            problems += [f"{name} is not in {file}, where the index puts it" for name in sorted(listed - held)]
            problems += [f"{name} is in {file} and not in the index" for name in sorted(held - listed)]
        if problems:
            raise ConvertError.listing(f"{path} and the files do not agree", problems)


def _parts(path: Path) -> dict[str, Part]:
    """What a file holds, checked against its size by the format's own library."""
    try:
        with safe_open(path, framework="pt"), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
    except (SafetensorError, OSError) as error:
        raise ConvertError(f"{path} is no sound safetensors file: {error}") from None
    header.pop("__metadata__", None)
    return {
        name: Part(path, 8 + length + entry["data_offsets"][0], entry["dtype"], torch.Size(entry["shape"]))
        for name, entry in header.items()
    }

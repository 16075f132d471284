"""Tensors in safetensors files: written and read one at a time, one file or many with an index.

The format (huggingface/safetensors): 8 bytes of header length, a JSON header of dtype, shape and byte range of each
tensor, then the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from megaxf.convert.errors import ConvertError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"bfloat16": (torch.bfloat16, "BF16"), "float16": (torch.float16, "F16"), "float32": (torch.float32, "F32")}
READABLE = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}
ALIGNMENT = 8


def write_files(
    folder: Path, shapes: Mapping[str, torch.Size], read: Callable[[str], torch.Tensor], dtype: str, max_bytes: int
) -> int:
    """Write all tensors, in files of at most `max_bytes` (a larger tensor has one alone); gives the bytes of tensors.

    read: gives the tensor of a name when it is its turn; one is in memory at a time.
    dtype: "bfloat16", "float16" or "float32".
    """
    itemsize = DTYPES[dtype][0].itemsize
    sizes = {name: shape.numel() * itemsize for name, shape in shapes.items()}
    shards = _shards(sizes, max_bytes)
    names = [SINGLE] if len(shards) == 1 else [_shard_name(k, len(shards)) for k in range(1, len(shards) + 1)]
    for name, members in zip(names, shards, strict=True):
        _write_file(folder / name, {member: shapes[member] for member in members}, read, dtype)
    if len(shards) > 1:
        where = {member: name for name, members in zip(names, shards, strict=True) for member in members}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
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


def _write_file(path: Path, shapes: Mapping[str, torch.Size], read: Callable[[str], torch.Tensor], dtype: str) -> None:
    torch_dtype, label = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + shape.numel() * torch_dtype.itemsize
        header[name] = {"dtype": label, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            file.write(read(name).to(torch_dtype).contiguous().view(torch.uint8).numpy().data)


class SafetensorsFolder(Mapping[str, torch.Tensor]):
    """The tensors of a folder by name, each read when asked for.

    Raises ConvertError naming the file that is at fault.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, Any] = {}
        where = self._index()
        self.shapes: dict[str, torch.Size] = {}
        self.dtypes: set[str] = set()
        """As torch names them."""
        for name, file in where.items():
            part = self._open(file).get_slice(name)
            if part.get_dtype() not in READABLE:
                raise ConvertError(
                    f"{folder / file}: {name} has dtype {part.get_dtype()}; {', '.join(READABLE)} are read"
                )
            self.shapes[name] = torch.Size(part.get_shape())
            self.dtypes.add(READABLE[part.get_dtype()])
        self._where = where

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor in its own dtype; raises KeyError for an unknown name."""
        tensor: torch.Tensor = self._open(self._where[name]).get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def _index(self) -> dict[str, str]:
        """Tensor name -> file name, checked against the files that are there."""
        there = {path.name for path in self._folder.glob("*.safetensors")}
        if not (self._folder / INDEX).is_file():
            if there != {SINGLE}:
                found = ", ".join(sorted(there)) or "no *.safetensors (pickled weights are not read: they can run code)"
                raise ConvertError(f"{self._folder} needs {SINGLE}, or {INDEX} with its files; found {found}")
            return dict.fromkeys(self._open(SINGLE).keys(), SINGLE)
        where: dict[str, str] = json.loads((self._folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        missing = sorted(set(where.values()) - there)
        problems = [f"{name} is missing, with {sum(f == name for f in where.values())} tensors" for name in missing]
        problems += [f"{name} is not in the index" for name in sorted(there - set(where.values()))]
        for file in sorted(set(where.values()) & there):
            listed, held = {name for name, f in where.items() if f == file}, set(self._open(file).keys())
            problems += [f"{name} is not in {file}, where the index puts it" for name in sorted(listed - held)]
            problems += [f"{name} is in {file} and not in the index" for name in sorted(held - listed)]
        if problems:
            raise ConvertError.listing(f"{self._folder / INDEX} and the files do not agree", problems)
        return where

    def _open(self, file: str) -> Any:
        if file not in self._files:
            try:
                self._files[file] = safe_open(self._folder / file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ConvertError(f"{self._folder / file} is no sound safetensors file: {error}") from None
        return self._files[file]

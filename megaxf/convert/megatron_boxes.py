"""Megatron-LM's layout `torch_dist`: whole tensors in boxes, the layers stacked, whatever ranks saved them.

metadata.json            which layout it is
common.pt                the arguments
.metadata                torch.distributed.checkpoint's table of contents: boxes of tensors, and where they lie
__0_0.distcp, ...        boxes, each as torch.save writes it
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.json_files import read_json
from megaxf.convert.megatron_names import HEAD, LAYER, TABLE
from megaxf.convert.megatron_settings import arguments_in
from megaxf.convert.torch_files import StandIn, brief, read_torch_file

KIND, COMMON, CONTENTS = "metadata.json", "common.pt", ".metadata"
MODEL = (TABLE, "decoder.", HEAD)
"""What the names of the model's tensors begin with; others are the optimizer's."""


class Box(NamedTuple):
    """A part of a tensor, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class StackedShares:
    """Tensors by their names in the whole model, each as the one share that there is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boxes, shapes = _read_contents(folder)
        self.shapes: dict[str, list[torch.Size]] = {}
        self._places: dict[str, tuple[str, int | None]] = {}
        for key, shape in shapes.items():
            for name, number in _layers(key, shape):
                self.shapes[name] = [shape if number is None else shape[1:]]
                self._places[name] = key, number

    def __getitem__(self, name: str) -> list[torch.Tensor]:
        key, number = self._places[name]
        whole: torch.Tensor | None = None
        for box in self._boxes[key]:
            offsets, sizes = box.offsets, box.sizes
            if number is not None:
                if not offsets[0] <= number < offsets[0] + sizes[0]:
                    continue
                offsets, sizes = offsets[1:], sizes[1:]
            values = self._read(box)
            values = values if number is None else values.view(box.sizes)[number - box.offsets[0]]
            if whole is None:
                whole = torch.empty(self.shapes[name][0], dtype=values.dtype)
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] = values
        if whole is None:
            raise ConvertError(f"{self._folder / CONTENTS} says of no file that it holds {name}")
        return [whole]

    def _read(self, box: Box) -> torch.Tensor:
        path = self._folder / box.file
        try:
            with path.open("rb") as file:
                file.seek(box.start)
                tensor: torch.Tensor = torch.load(
                    io.BytesIO(file.read(box.length)), map_location="cpu", weights_only=True
                )
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ConvertError(f"{path} is damaged: {brief(error)}") from None
        return tensor


def recognises(folder: Path) -> bool:
    """Whether a folder of an iteration is in this layout."""
    return (folder / KIND).is_file() and (folder / COMMON).is_file()


def read_dist(folder: Path) -> tuple[dict[str, Any], StackedShares]:
    """The arguments of the run, and its tensors. Raises ConvertError where files are missing or damaged."""
    kind = read_json(folder / KIND).get("sharded_backend")
    if kind != "torch_dist":
        raise ConvertError(f"{folder / KIND}: sharded_backend = {kind!r} is not read, only 'torch_dist'")
    return arguments_in(read_torch_file(folder / COMMON), folder / COMMON), StackedShares(folder)


def _layers(key: str, shape: torch.Size) -> Iterator[tuple[str, int | None]]:
    """The names in the whole model of a tensor, with the place in it; None where it is not stacked."""
    end = key.removeprefix(LAYER)
    if end == key or end.split(".")[0].isdigit():
        yield key, None
        return
    for number in range(shape[0]):
        yield f"{LAYER}{number}.{end}", number


class _Unpickler(pickle.Unpickler):
    """Makes a stand-in of every object but sizes and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        """What is called by that name."""
        if (module, name) == ("torch", "Size"):
            return torch.Size
        dtype = getattr(torch, name, None) if module == "torch" else None
        return dtype if isinstance(dtype, torch.dtype) else StandIn


def _read_contents(folder: Path) -> tuple[dict[str, list[Box]], dict[str, torch.Size]]:
    """(the boxes, the shapes) of the model's tensors by name. Raises ConvertError."""
    path = folder / CONTENTS
    try:
        table = _Unpickler(io.BytesIO(path.read_bytes())).load()
        entries = {key: entry for key, entry in table.state_dict_metadata.items() if _is_weight(key, entry)}
        sizes = {(key, tuple(box.offsets)): tuple(box.sizes) for key, entry in entries.items() for box in entry.chunks}
        boxes: dict[str, list[Box]] = {key: [] for key in entries}
        for index, place in table.storage_data.items():
            if index.fqn in boxes:
                offsets = tuple(index.offset)
                where = (place.relative_path, place.offset, place.length)
                boxes[index.fqn].append(Box(offsets, sizes[index.fqn, offsets], *where))
    except (OSError, AttributeError, KeyError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise ConvertError(f"{path} is no table of contents of torch.distributed.checkpoint: {error!r}") from None
    shapes = {key: torch.Size(entry.size) for key, entry in entries.items()}
    for key, shape in shapes.items():
        if sum(torch.Size(box.sizes).numel() for box in boxes[key]) != shape.numel():
            raise ConvertError(f"{path}: the boxes of {key} do not make up its shape {list(shape)}")
    return boxes, shapes


def _is_weight(key: str, entry: Any) -> bool:
    return key.startswith(MODEL) and hasattr(entry, "chunks")

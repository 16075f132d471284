"""What a checkpoint says by itself, without an engine: its state, its configuration, its weights."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import yaml

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.manifest import check_contents, check_sizes, read_file, read_manifest
from megaxf.checkpoint.ranks import together
from megaxf.checkpoint.tensors import CONTENTS, MASTER, TensorFiles
from megaxf.models.weights import Weights as LazyWeights
from megaxf.models.weights import rows_of_piece
from megaxf.parallel.boxes import PARTS
from megaxf.parallel.mesh import Mesh

STATE, CONFIG, TOKENIZER, TENSORS = "state.json", "config.yaml", "tokenizer", "tensors"


def verify(path: Place, mesh: Mesh) -> None:
    """Compare every file with the manifest; collective, the ranks share the reading.

    Raises DamagedCheckpoint on every rank, naming the first file that is gone, cut or altered.
    """

    def check() -> None:
        entries = check_sizes(path)
        check_contents(path, list(entries)[mesh.rank :: mesh.world_size], entries)

    together(mesh, check)


def read_state_file(path: Place) -> dict[str, Any]:
    """state.json: step, optimizer_step, shapes, extra, megaxf_version."""
    state: dict[str, Any] = json.loads(read_file(path, STATE))
    return state


def read_extra(path: str | PathLike[str] | Place) -> dict[str, Any]:
    """What was saved as `extra`."""
    extra: dict[str, Any] = read_state_file(files.place(path))["extra"]
    return extra


def read_config(path: str | PathLike[str] | Place) -> dict[str, Any]:
    """config.yaml as a mapping. Raises CheckpointError where it names no model."""
    file = files.place(path) / CONFIG
    settings = yaml.safe_load(read_file(file.parent, CONFIG))
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise CheckpointError(f"{file} has no section `model`: the checkpoint alone does not say what it is")
    return settings


def tokenizer_folder(path: str | PathLike[str] | Place) -> Path | None:
    """The tokenizer of a checkpoint on a disk: out of a store it is copied, until the program ends. None for none.

    Raises DamagedCheckpoint where a file of it is not what was written.
    """
    source = files.place(path) / TOKENIZER
    if not files.is_folder(source):
        return None
    if isinstance(source, Path):
        names = [f"{TOKENIZER}/{name}" for name in files.sizes(source)]
        check_contents(source.parent, names, read_manifest(source.parent))
        return source
    copy = Path(mkdtemp(prefix="megaxf-tokenizer-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for name in files.sizes(source):
        files.write_bytes(copy / name, read_file(source.parent, f"{TOKENIZER}/{name}"))
    return copy


def masters(tensors: TensorFiles) -> dict[str, torch.Size]:
    """The shapes of the weights by parameter name."""
    return {key.removesuffix(MASTER): shape for key, shape in tensors.shapes.items() if key.endswith(MASTER)}


class Part(LazyWeights):
    """Parameter name -> fp32 tensor of one part, each read when asked for and not kept."""

    def __init__(self, tensors: TensorFiles, names: Iterable[str], part: str) -> None:
        """part: of `PARTS`: the master weights or one of AdamW's moments. Only master weights are there always."""
        self._tensors, self._part = tensors, f"/{part}"
        shapes = masters(tensors)
        self.shapes = {name: shapes[name] for name in names}

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor; raises KeyError for an unknown name."""
        return self._tensors.read(name + self._part)

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """One tensor, of which a piece is in memory at a time."""
        whole, step = self.shapes[name][0], rows_of_piece(self.shapes[name])
        for first in range(0, whole, step):
            yield self.rows(name, first, min(step, whole - first))

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor."""
        inner = self.shapes[name][1:]
        values = torch.empty(count, *inner)
        self._tensors.fill(name + self._part, [first, *[0] * len(inner)], values)
        return values


class Weights(Part):
    """The same of a complete checkpoint, in the model's order.

    A file is compared with its checksum before the first tensor is read from it, those of the moments never. Raises
    DamagedCheckpoint then, where it is not what was written.
    """

    def __init__(self, path: Place, part: str) -> None:
        self._path, self._entries = path, check_sizes(path)
        tensors = TensorFiles(path / TENSORS, read_file(path, f"{TENSORS}/{CONTENTS}"))
        super().__init__(tensors, read_state_file(path)["shapes"], part)
        self._sound: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor; raises KeyError for an unknown name."""
        self._check(name)
        return super().__getitem__(name)

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor."""
        self._check(name)
        return super().rows(name, first, count)

    def _check(self, name: str) -> None:
        found = self._tensors.files_of(name + self._part, [0] * len(self.shapes[name]), self.shapes[name])
        check_contents(self._path, [f"{TENSORS}/{file}" for file in sorted(found - self._sound)], self._entries)
        self._sound |= found


def read_weights(path: str | PathLike[str] | Place) -> Weights:
    """The weights of a checkpoint for one process. Raises DamagedCheckpoint where a file is not of its size."""
    return Weights(files.place(path), PARTS[0])


def read_moments(path: str | PathLike[str] | Place) -> tuple[int, dict[str, LazyWeights]]:
    """(AdamW's updates so far, its moments by name), which a checkpoint of no step does not have; as `read_weights`."""
    place = files.place(path)
    step = int(read_state_file(place)["optimizer_step"])
    return step, {part: Weights(place, part) for part in PARTS[1:] if step}

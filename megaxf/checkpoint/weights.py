"""What a checkpoint says by itself, without an engine: its state, its configuration, its weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import check_contents, check_sizes
from megaxf.checkpoint.ranks import together
from megaxf.checkpoint.tensors import TensorFiles
from megaxf.parallel.mesh import Mesh, build_mesh

STATE, CONFIG, TOKENIZER, TENSORS = "state.json", "config.yaml", "tokenizer", "tensors"
MASTER = "/master"


def verify(path: Path, mesh: Mesh) -> None:
    """Compare every file with the manifest; collective, the ranks share the reading.

    Raises DamagedCheckpoint on every rank, naming the first file that is gone, cut or altered.
    """

    def check() -> None:
        entries = check_sizes(path)
        check_contents(path, list(entries)[mesh.rank :: mesh.world_size], entries)

    together(mesh, check)


def read_state_file(path: Path) -> dict[str, Any]:
    """state.json: step, optimizer_step, shapes, extra, megaxf_version."""
    state: dict[str, Any] = json.loads((path / STATE).read_bytes())
    return state


def read_extra(path: str | Path) -> dict[str, Any]:
    """What was saved as `extra`."""
    extra: dict[str, Any] = read_state_file(Path(path))["extra"]
    return extra


def read_config(path: str | Path) -> dict[str, Any]:
    """config.yaml as a mapping. Raises CheckpointError where it names no model."""
    file = Path(path) / CONFIG
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise CheckpointError(f"{file} has no section `model`: the checkpoint alone does not say what it is")
    return settings


def masters(files: TensorFiles) -> dict[str, torch.Size]:
    """The shapes of the weights by parameter name."""
    return {key.removesuffix(MASTER): shape for key, shape in files.shapes.items() if key.endswith(MASTER)}


class Weights(Mapping[str, torch.Tensor]):
    """Parameter name -> fp32 tensor, in the model's order; each is read when asked for and not kept."""

    def __init__(self, files: TensorFiles, names: Iterable[str]):
        self._files = files
        shapes = masters(files)
        self.shapes = {name: shapes[name] for name in names}
        """Known without reading a tensor."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor; raises KeyError for an unknown name."""
        if name not in self.shapes:
            raise KeyError(name)
        return self._files.read(name + MASTER)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def read_weights(path: str | Path) -> Weights:
    """The weights of a checkpoint for one process. Raises DamagedCheckpoint where a file is not what was written."""
    path = Path(path)
    verify(path, build_mesh())
    return Weights(TensorFiles(path / TENSORS), read_state_file(path)["shapes"])

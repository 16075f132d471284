"""Tensors by name in the files of torch.distributed.checkpoint (DCP).

DCP keeps its table of contents as a pickle. It is read here by an unpickler that knows the classes of that table and
nothing else, so that a checkpoint cannot run code.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from megaxf.checkpoint import files
from megaxf.checkpoint.dcp_files import DcpFiles
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Place
from megaxf.parallel.mesh import Mesh

CONTENTS = ".metadata"
FLAT = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
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


class _Planner(DefaultSavePlanner):
    """Fetches each tensor at the moment it is written."""

    def __init__(self, read: Callable[[str], torch.Tensor]):
        super().__init__(**FLAT)
        self._read = read

    def lookup_object(self, index: dcp_metadata.MetadataIndex) -> torch.Tensor:
        return self._read(index.fqn)


def write(
    folder: Place,
    shapes: Mapping[str, torch.Size],
    read: Callable[[str], torch.Tensor],
    mesh: Mesh,
    *,
    one_by_one: bool = False,
) -> None:
    """Write this rank's tensors; collective. The keys of the ranks are disjoint.

    shapes: what this rank writes, fp32. read: gives a tensor of `shapes` when it is its turn.
    one_by_one: a file for each tensor, so that one is in memory at a time; else one file for this rank.
    Raises CheckpointError on every rank where one cannot write.
    """
    planned = {key: torch.empty(shape, dtype=torch.float32, device="meta") for key, shape in shapes.items()}
    writer = FileSystemWriter("", single_file_per_rank=not one_by_one, sync_files=False)
    writer.fs, writer.path = DcpFiles(), folder  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            save(
                planned,
                storage_writer=writer,
                planner=_Planner(read),
                process_group=mesh.group,
                no_dist=mesh.group is None,
            )
    except CheckpointException as failure:
        rank, (error, _) = next(iter(failure.failures.items()))
        raise CheckpointError(f"rank {rank} could not write into {folder}: {type(error).__name__}: {error}") from error


class TensorFiles:
    """The tensors of a folder that `write` made, by key; the table of contents is read once."""

    def __init__(self, folder: Place):
        self._reader = _Reader(folder)
        contents = self._reader.read_metadata().state_dict_metadata
        self.shapes: dict[str, torch.Size] = {key: entry.size for key, entry in contents.items()}  # type: ignore[union-attr]

    def read(self, key: str) -> torch.Tensor:
        """One whole fp32 tensor; raises KeyError for an unknown key."""
        target = {key: torch.empty(self.shapes[key], dtype=torch.float32)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(target, storage_reader=self._reader, planner=DefaultLoadPlanner(**FLAT), no_dist=True)
        return target[key]


class _Reader(FileSystemReader):
    """DCP's reader with a table of contents that is read safely, and once."""

    def __init__(self, folder: Place):
        super().__init__("")
        self.fs, self.path = DcpFiles(), folder  # type: ignore[assignment]
        self._folder = folder
        self._contents: dcp_metadata.Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        if self._contents is None:
            path = self._folder / CONTENTS
            self._contents = _parse(files.read_bytes(path), path)
        return self._contents


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
    contents.storage_meta = contents.storage_meta or dcp_metadata.StorageMeta()
    return contents

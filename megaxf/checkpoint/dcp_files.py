"""The file layer as torch.distributed.checkpoint wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemBase

from megaxf.checkpoint import files


class DcpFiles(FileSystemBase):
    """For the attribute `fs` of DCP's FileSystemReader and of its writer, which then has to leave syncing to it."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        """A file to read or to write as a whole."""
        with (files.writing if mode == "wb" else files.reading)(path) as stream:
            yield stream

    def concat_path(self, path: Any, suffix: str) -> Any:
        """A file in a folder."""
        return path / suffix

    def init_path(self, path: Any) -> Any:
        """What a path or URL means."""
        return files.place(path)

    def rename(self, path: Any, new_path: Any) -> None:
        """Give a file another name."""
        files.rename(path, new_path)

    def mkdir(self, path: Any) -> None:
        """Make a folder."""
        files.make_folder(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether DCP is to find this class by itself for a path: it is always told."""
        return False

    def exists(self, path: Any) -> bool:
        """Whether there is a file of that name."""
        return path.name in files.names(path.parent)

    def rm_file(self, path: Any) -> None:
        """Delete a file."""
        files.remove_file(path)

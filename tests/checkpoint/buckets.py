"""A store that renames nothing, `bucket:///path`, on the disk so that what is in it outlives a process."""

import io
import os

import fsspec
from fsspec.implementations.local import LocalFileSystem


def holds_objects(path):
    """Whether there is any object below: a store has no empty folders."""
    return any(names for _, _, names in os.walk(path))


class Upload(io.BytesIO):
    """An object that is there as a whole when it is closed, and not before."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        if not self.closed:
            content = self.getvalue()
            super().close()
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "wb") as file:
                file.write(content)


class Bucket(LocalFileSystem):
    """Objects by key."""

    protocol = "bucket"

    def __init__(self, **options):
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("bucket://").rstrip("/")

    def ls(self, path, detail=False, **options):
        found = super().ls(path, detail=True, **options)
        found = [one for one in found if one["type"] == "file" or holds_objects(one["name"])]
        return found if detail else [one["name"] for one in found]

    def isdir(self, path):
        return holds_objects(self._strip_protocol(path))

    def _open(self, path, mode="rb", **options):
        return Upload(path) if mode == "wb" else super()._open(path, mode, **options)

    def mv(self, *args, **options):
        raise NotImplementedError("a store renames nothing")


fsspec.register_implementation("bucket", Bucket, clobber=True)

"""Files past the system's cache of pages: written, a buffer on its way to the disk while the next is filled, and read.

A checkpoint is loaded much later, if at all. Through the cache each of its bytes would be copied into a page that is
found, filled and given up for it, the pages of others would make way, and the disk would stand idle until fsync.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType

BUFFER_BYTES = 1 << 23
"""Of each of the two buffers of a file."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""Not every system has it."""


class DirectFile:
    """A new file, for one thread. What the operating system says of a write is raised by one of the next calls.

    A file system that knows no direct writes, or takes none of this size, gets them in the ordinary way.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=0, opener=_open)  # noqa: SIM115
        self._buffers = [_memory(BUFFER_BYTES) for _ in range(2)]
        self._filled = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="direct-file")
        self._on_its_way: Future[None] | None = None

    def write(self, content: memoryview) -> None:
        """Append bytes."""
        while content:
            count = min(len(content), BUFFER_BYTES - self._filled)
            self._buffers[0][self._filled : self._filled + count] = content[:count]
            self._filled += count
            content = content[count:]
            if self._filled == BUFFER_BYTES:
                self._wait()
                self._on_its_way = self._pool.submit(self._put, self._buffers[0])
                self._buffers.reverse()
                self._filled = 0

    def flush(self) -> None:
        """Hand everything so far to the system. It ends in the middle of a page, so all that follows is ordinary."""
        self._wait()
        _be_ordinary(self._file)
        self._put(self._buffers[0][: self._filled])
        self._filled = 0

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, after `flush` where it is whole."""
        self._pool.shutdown()
        self._file.close()

    def _wait(self) -> None:
        before, self._on_its_way = self._on_its_way, None
        if before is not None:
            before.result()

    def _put(self, view: memoryview) -> None:
        while view:
            try:
                view = view[self._file.write(view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not _be_ordinary(self._file):
                    raise


def read_blocks(path: Path) -> Iterator[memoryview]:
    """The content of a file in blocks, from the disk where its file system knows direct reads; each until the next."""
    with open(path, "rb", buffering=0, opener=_open) as file:
        left, buffer = os.fstat(file.fileno()).st_size, _memory(BUFFER_BYTES)
        while left > 0:
            try:
                count = file.readinto(buffer)
            except OSError as error:
                if error.errno != errno.EINVAL or not _be_ordinary(file):
                    raise
                continue
            if not count:  # it was cut meanwhile
                return
            yield buffer[:count]
            left -= count


def _be_ordinary(file: FileIO) -> bool:
    """Go through the system's cache from now on; false where that is so already."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags & ~DIRECT)
    return bool(flags & DIRECT)


def _memory(size: int) -> memoryview:
    """Memory that begins at a page, as direct writes want it, and has large pages: a disk is asked for few long runs of
    memory instead of many of 4096 bytes, and they are there at once.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # not every system has them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)

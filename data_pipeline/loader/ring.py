"""One thread that reads batches ahead of need into a few buffers, which are used again and again.

    with Ring(batches, requests) as ring:
        for request, batch in ring:
            ...                 # the batch is in a buffer that is lent
            ring.release()      # until here

A buffer is filled again only when it has been given back, so a consumer that is slow, or that copies to a GPU while it
goes on, finds its rows as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Protocol

from data_pipeline.rows.batch import Allocate, Batch, Buffer, allocate

DEPTH = 2
"""Batches that lie ready: one would do, the second is for the one that takes long."""

_PATIENCE = 10.0
"""Seconds that `close` waits for a read to end. One that hangs in a store does not keep the process alive."""


class Request(NamedTuple):
    """A batch that will be wanted."""

    first_sample: int
    rows: int
    sequence_length: int


class Filled(NamedTuple):
    """A request and its batch."""

    request: Request
    batch: Batch


class RowSource(Protocol):
    """What rows come from, such as `Batches`."""

    @property
    def isolate_documents(self) -> bool:
        """Whether batches have positions and document ids."""

    def rows(self, first_sample: int, count: int, out: Buffer | None = None) -> Batch:
        """The batch of these samples, read into `out`."""


class Ring:
    """The batches of requests, in their order."""

    def __init__(
        self, source: RowSource, requests: Iterable[Request], depth: int = DEPTH, allocate: Allocate = allocate
    ):
        """depth: batches that are read ahead, beside the one that is lent. allocate: gives the memory of buffers, such
        as pinned memory."""
        self._source, self._requests, self._allocate = source, requests, allocate
        self._free: SimpleQueue[Buffer | None] = SimpleQueue()
        """Buffers to fill; None for one that is still to be made."""
        for _ in range(depth + 1):
            self._free.put(None)
        self._filled: SimpleQueue[tuple[Buffer, Filled] | BaseException] = SimpleQueue()
        self._lent: deque[Buffer] = deque()
        self._most_lent = depth + 1
        self._end: BaseException | None = None
        self._closed = False
        self._thread = Thread(target=self._fill, name="ring", daemon=True)
        self._thread.start()

    def __iter__(self) -> Ring:
        return self

    def __next__(self) -> Filled:
        """Waits for the next batch and lends it. What the thread could not read is raised here, each time again."""
        if self._end is None and len(self._lent) == self._most_lent:
            raise RuntimeError(f"all {self._most_lent} buffers of the ring are lent; release one before the next batch")
        found = self._end or self._filled.get()
        if isinstance(found, BaseException):
            self._end = found
            raise found
        self._lent.append(found[0])
        return found[1]

    def release(self) -> None:
        """Gives the batch that was lent first back; its arrays are not to be read any more."""
        self._free.put(self._lent.popleft())

    def close(self) -> None:
        """Ends the thread; a read that is going on ends first."""
        self._closed = True
        self._end = self._end or RuntimeError("the ring is closed")
        self._free.put(None)
        self._thread.join(_PATIENCE)

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self) -> None:
        try:
            for request in self._requests:
                buffer = self._free.get()
                if self._closed:
                    break
                buffer = self._fitting(buffer, request)
                batch = self._source.rows(request.first_sample, request.rows, buffer)
                self._filled.put((buffer, Filled(request, batch)))
            self._filled.put(StopIteration())
        except BaseException as error:  # whatever it is, it belongs to the consumer
            self._filled.put(error)

    def _fitting(self, buffer: Buffer | None, request: Request) -> Buffer:
        """The buffer, or a new one where a phase has changed the shape of a batch."""
        shape = request.rows, request.sequence_length
        if buffer is None or buffer.block.shape != (shape[0], shape[1] + 1):
            buffer = Buffer(*shape, self._source.isolate_documents, allocate=self._allocate)
        return buffer

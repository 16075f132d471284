"""Runs functions over items in several processes and gives the results in the order of the items."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

from data_pipeline.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4
"""Items in flight for each process: enough to keep them busy, few enough to bound the memory."""


class Workers:
    """Some processes, started by `spawn` when they are first needed; one process means this one.

    They end with the block, at once when it is left by an error or Ctrl-C, and when this process is killed.
    """

    def __init__(self, processes: int):
        self.processes = processes
        self._pool: ProcessPoolExecutor | None = None
        self._leash: Connection | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """function(item) for each item, in order; items are asked for as they are needed."""
        if self.processes == 1:
            yield from map(function, items)
            return
        pool = self._pool or self._start()
        waiting: deque[Future[Any]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= _AHEAD * self.processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, most likely for lack of memory; use fewer --processes"
            ) from None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool and self._leash:
            if error is not None:
                self._leash.close()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._leash.close()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        theirs, self._leash = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.processes, mp_context=context, initializer=_follow_parent, initargs=(theirs,)
        )
        return self._pool


def _follow_parent(leash: Connection) -> None:
    """Leaves Ctrl-C to the parent, ends with it or when it lets go of the leash, and keeps to one core."""
    # Else each worker's tokenizer library would start a thread for every core of the machine.
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel, leash])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

"""Runs a function over items in several processes and gives the results in the order of the items."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, TypeVar

from data_pipeline.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4
"""Items in flight for each process: enough to keep them busy, few enough to bound the memory."""


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Generator[Result]:
    """function(item) for each item, in order. One process means this one; more are started by `spawn`.

    Workers end when the iterator is closed, when it raises, on Ctrl-C, and when this process is killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_follow_parent)
    waiting: deque[Future[Any]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= _AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DataError("a worker process was killed, most likely for lack of memory; use fewer --processes") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent() -> None:
    """Leaves Ctrl-C to the parent, ends with it however it ends, and keeps to one core."""
    # Else each worker's tokenizer library would start a thread for every core of the machine.
    os.putenv("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

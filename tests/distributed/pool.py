"""Groups of persistent processes in which tests run functions on several ranks.

    def losses(rank_count, stage):              # at the top level of a module under tests/
        mesh = build_mesh()                     # torch.distributed (gloo) is running, one thread a process
        ...
        return [...]                            # anything that pickles: numbers, tensors

    def test_losses(run_on):                    # a fixture of tests/conftest.py, for the whole session
        per_rank = run_on(2, losses, 2, 1)      # results in rank order
        per_rank = run_on(2, losses, 2, 1, timeout=300)

A group of a size starts when it is first asked for and serves all tests of the session. Its processes are forked from
one that has imported what they need (tests.distributed.forking), which would cost each of them some seconds.
An exception comes back with the traceback of its rank; it ends the group, whose ranks may no longer be in step, and the
next call starts a fresh one. So does a time-out. Functions should leave nothing behind: no global state, no files.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.distributed.forking import warm_processes

TIMEOUT = 300.0
"""Seconds that one call may take."""
GRACE = 5.0
"""Seconds that the other ranks get once one has failed."""


class RemoteError(Exception):
    """A function failed on a rank, or did not come back."""


class Group:
    """The processes of one torch.distributed world."""

    def __init__(self, size: int) -> None:
        context = warm_processes()
        self._folder = tempfile.TemporaryDirectory(prefix="megaxf-ranks-")
        store = os.path.join(self._folder.name, "store")
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, size, store), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> list[Any]:
        """`function(*args)` on every rank; raises RemoteError."""
        message = pickle.dumps((function, args))
        name = f"{function.__module__}.{function.__qualname__}"
        for end in self._ends:
            end.send_bytes(message)
        results: dict[int, Any] = {}
        failures: list[str] = []
        deadline = time.monotonic() + timeout
        while len(results) < len(self._ends):
            waiting = [end for rank, end in enumerate(self._ends) if rank not in results]
            ready = wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                failures.append(f"ranks {[r for r in range(len(self._ends)) if r not in results]} did not come back")
                break
            for end in ready:
                rank = self._ends.index(end)
                results[rank], failure = _receive(end)
                if failure:
                    failures.append(f"rank {rank}: {failure}")
                    deadline = min(deadline, time.monotonic() + GRACE)
        if failures:
            self.close(patience=0.0)
            raise RemoteError(f"{name} on {len(self._ends)} ranks, within {timeout:.0f} s\n" + "\n".join(failures))
        return [results[rank] for rank in range(len(self._ends))]

    @property
    def alive(self) -> bool:
        """Whether every process still runs."""
        return all(process.is_alive() for process in self._processes)

    def close(self, patience: float = 5.0) -> None:
        """End the processes, by force after `patience` seconds."""
        for end in self._ends:
            end.close()
        deadline = time.monotonic() + patience
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
        self._folder.cleanup()


class Pool:
    """Groups by their size, started when needed."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    def __call__(self, ranks: int, function: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        """See the head of this module."""
        group = self._groups.get(ranks)
        if group is None or not group.alive:
            group = self._groups[ranks] = Group(ranks)
        return group.run(function, args, timeout)

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            if group.alive:
                group.close()


def _receive(end: Connection) -> tuple[Any, str]:
    """(result, why there is none)."""
    try:
        return pickle.loads(end.recv_bytes())
    except EOFError:
        return None, "the process died"


def _serve(end: Connection, rank: int, size: int, store: str) -> None:
    """The life of one rank: run what comes, until the other end closes."""
    import torch
    import torch.distributed as dist

    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    patience = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=patience)
    while True:
        try:
            message = end.recv_bytes()
        except EOFError:
            os._exit(0)  # nothing to save, and an orderly end of torch takes seconds
        try:
            function, args = pickle.loads(message)
            answer = function(*args), ""
        except BaseException:
            answer = None, traceback.format_exc()
        end.send_bytes(pickle.dumps(answer))

"""Groups of processes whose steps are timed in turn: between its turns a group waits and uses nothing.

with Group(2, threads=1, make=make_step, settings) as group:   # make_step(settings) -> step, in each process
    group.step()                                                # one step on all ranks; its result on rank 0
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Step = Callable[[], Any]


class Group:
    """Processes of one torch.distributed world (gloo), each with a step of its own."""

    def __init__(self, ranks: int, threads: int, make: Callable[..., Step], *arguments: Any) -> None:
        """make: a top-level function that builds a process's step, called once the world is there."""
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="megaxf-benchmark-")
        store = os.path.join(self._folder.name, "store")
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, ranks, threads, store, make, arguments))
            process.start()
            self._ends.append(here)
            self._processes.append(process)
        for end in self._ends:
            end.recv()

    def step(self) -> Any:
        """One step on every rank; returns what rank 0's gave."""
        for end in self._ends:
            end.send(True)
        results = [end.recv() for end in self._ends]
        return results[0]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        for end in self._ends:
            end.send(False)
        for process in self._processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


def _serve(
    end: Connection, rank: int, ranks: int, threads: int, store: str, make: Callable[..., Step], arguments: Any
) -> None:
    os.environ |= {"OMP_NUM_THREADS": str(threads), "LOCAL_RANK": str(rank)}
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    step = make(*arguments)
    end.send("ready")
    while end.recv():
        end.send(step())
    os._exit(0)

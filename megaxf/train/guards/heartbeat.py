"""Every rank tells all others that it lives, and where it is; where one is lost or stands still, all of them end.

    with Heartbeat(mesh, folder / "stacks", timeout) as heartbeat:
        heartbeat.beat(12, "train")             # as often as one likes: two assignments

The beats lie in the store that torch.distributed met at: a key a rank, set every few seconds by a thread of its own.
Not in files: 10,000 ranks that each write a small file of a shared file system every 5 seconds are 2,000 operations a
second for its metadata server, which all jobs share; the store, a process' memory, answers ten times as many. Rank 0
reads all of them in one message and writes the verdict beside them; the others read that, and whether rank 0 beats.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch.distributed as dist

from megaxf.parallel.collectives import broadcast_object
from megaxf.parallel.mesh import Mesh
from megaxf.train.guards.outcome import Outcome
from megaxf.train.guards.watch import FAILED, Beat, Verdict, Watch, read_beat

Result = TypeVar("Result")

INTERVAL = 5.0
"""Seconds between beats, or a tenth of the time-out where that is less."""
BEATS_A_SECOND = 2000
"""The most that the store is asked to take: more ranks beat less often."""
MISSED = 3
"""Beats after which a rank counts as lost once a message between ranks has failed."""
MOST_STACKS = 64


class Heartbeat:
    """See the head of this module. Without other ranks it only watches that the run comes further."""

    def __init__(self, mesh: Mesh, stacks: Path, timeout: float) -> None:
        """Collective. stacks: the folder for the stacks of ranks that stand still. timeout: in seconds."""
        self._mesh, self._stacks = mesh, stacks
        self._interval = max(min(INTERVAL, timeout / 10), mesh.world_size / BEATS_A_SECOND)
        self._watch = Watch(timeout)
        self._step, self._phase, self._count = 0, "start", 0
        self._host, self._ended, self._closed = platform.node(), threading.Event(), threading.Event()
        self._store = _own_connection(timeout)
        # torchrun keeps its store over restarts, with the verdict on the ranks before.
        self._key = f"megaxf/heartbeat/{broadcast_object(uuid.uuid4().hex, mesh)}"
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._guard, self._rounds = threading.Thread(target=self._see_answers, name="store", daemon=True), 0
        self._looking = threading.Lock()

    def beat(self, step: int, phase: str) -> None:
        """Where this rank is now: the step that it makes, and one of `watch.PHASES`."""
        self._step, self._phase = step, phase

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. An error that is not the same on all ranks ends the process here: an orderly one would wait."""
        alike = error is None or getattr(error, "user_fault", False) or isinstance(error, KeyboardInterrupt)
        if error is not None and not alike and self._mesh.world_size > 1:
            self._fail(error)
        self._ended.set()
        # Python ends a thread that it finds in the store's calls by aborting the process. Where the store does not
        # answer, the guard ends the wait.
        self._thread.join()
        self._phase = "done"
        if self._mesh.world_size > 1:
            _try(self._tell)
        self._closed.set()
        self._guard.join()

    def _run(self) -> None:
        unreachable = 0.0
        while not self._ended.wait(self._interval):
            started = time.monotonic()
            try:
                verdict = self._look()
                unreachable = 0.0
            except RuntimeError as error:
                unreachable += self._interval + time.monotonic() - started
                verdict = None
                if unreachable > self._watch.timeout:
                    verdict = Verdict(f"the store where all ranks meet cannot be reached: {_line(error)}", [])
                    self._say(verdict.text)
            self._rounds += 1
            if verdict is not None and not self._ended.is_set():
                self._end(verdict)

    def _see_answers(self) -> None:
        """End this process where the store says nothing, for which torch would wait: a cut cable gives no error."""
        rounds = missed = 0
        while not self._closed.wait(self._interval):
            missed = 0 if self._rounds > rounds else missed + 1
            rounds = self._rounds
            if (silent := missed * self._interval) > self._watch.timeout:
                self._say(
                    f"the store where all ranks meet, at rank 0, has not answered for {silent:.0f} s: its host is "
                    f"gone, or {self._host} is cut off. {self._watch.last_steps()}"
                )
                self._leave(Outcome.LOST)

    def _look(self, patience: float | None = None) -> Verdict | None:
        """Tell where this rank is and hear of the others; the verdict, if there is one."""
        with self._looking:
            self._tell()
            if self._store is not None and self._store.check([f"{self._key}/verdict"]):
                return Verdict(*json.loads(self._store.get(f"{self._key}/verdict")))
            ranks = list(range(self._mesh.world_size) if self._mesh.rank == 0 else {0, self._mesh.rank})
            for rank, beat in zip(ranks, self._read(ranks), strict=True):
                self._watch.see(rank, beat, time.monotonic())
            verdict = self._watch.verdict(time.monotonic(), patience)
            if verdict is not None:
                self._say(verdict.text)
                if self._store is not None:
                    self._store.set(f"{self._key}/verdict", json.dumps(verdict))
            return verdict

    def _tell(self) -> None:
        self._count += 1
        if self._store is not None:
            self._store.set(f"{self._key}/{self._mesh.rank}", self._own().to_text())

    def _own(self) -> Beat:
        return Beat(self._host, self._step, self._phase, self._count)

    def _read(self, ranks: list[int]) -> list[Beat]:
        """The beats of these ranks; an empty one of a rank that has not begun."""
        if self._store is None:
            return [self._own()]
        keys = [f"{self._key}/{rank}" for rank in ranks]
        if self._store.check(keys):
            return [read_beat(text) for text in self._store.multi_get(keys)]
        return [read_beat(self._store.get(key)) if self._store.check([key]) else Beat() for key in keys]

    def _fail(self, error: BaseException) -> None:
        """Say what happened, here and to all; end the process."""
        lost = isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "connection" in str(error).lower()
        self._write_stack("".join(traceback.format_exception(error)))
        if not lost:
            self._phase = f"{FAILED}{type(error).__name__}: {_line(error)}"
            traceback.print_exception(error)
            _try(self._tell)
            self._leave(1)
        if self._mesh.rank == 0:
            self._print(f"a message between ranks failed: {_line(error)}")
        for _ in range(MISSED + 2):
            found = _try(lambda: (self._look(patience=MISSED * self._interval),))
            if found and found[0]:
                break
            time.sleep(self._interval)
        else:
            which = "which cannot be told" if found else "and the store with rank 0 or its launcher among them"
            self._say(f"rank {self._mesh.rank} has lost others, {which}. {self._watch.last_steps()}")
        self._leave(Outcome.LOST)

    def _end(self, verdict: Verdict) -> None:
        """End this process, whatever its main thread waits for."""
        if self._mesh.rank in verdict.stuck[:MOST_STACKS]:
            self._write_stack("")
        self._leave(Outcome.LOST)

    def _write_stack(self, text: str) -> None:
        """Where every thread of this process is, into a file; the process ends also where its disk is full."""
        path = self._stacks / f"rank-{self._mesh.rank:05}.txt"
        try:
            self._stacks.mkdir(parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"rank {self._mesh.rank} ({self._host}), step {self._step}, {self._phase}\n{text}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
        except OSError as error:
            self._print(f"{path} cannot be written: {error}")

    def _say(self, text: str) -> None:
        self._print(f"{text}. The run is ended on all ranks; start again to go on from the newest checkpoint")

    def _print(self, text: str) -> None:
        print(f"megaxf: error: {text}", file=sys.stderr, flush=True)

    def _leave(self, code: int) -> None:
        sys.stdout.flush()
        os._exit(code)


def _try(work: Callable[[], Result]) -> Result | None:
    """What `work` gives, None where the store cannot be reached."""
    try:
        return work()
    except RuntimeError:
        return None


def _own_connection(timeout: float) -> Any:
    """A connection to the store of torch.distributed that waits for no other thread; None for one process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    shared: Any = dist.distributed_c10d._get_default_store()
    store = shared.clone()
    store.set_timeout(timedelta(seconds=timeout))
    return store


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__

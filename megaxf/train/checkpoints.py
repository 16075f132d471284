"""The checkpoints that a run makes, between its steps or beside them.

Beside them: a copy of the state is made in the host's memory (megaxf.checkpoint.staging.HostBuffers says how much), and
threads write it while training goes on. One is in flight at most. That all ranks have done their part of a stage is
told with the message that they exchange each step, so the next stage begins some steps later; a fault of one rank's
thread ends the run on all ranks there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from megaxf.checkpoint import Background, HostBuffers, run_flow, saving
from megaxf.checkpoint.files import Place
from megaxf.config import Run, to_yaml
from megaxf.engine import Engine
from megaxf.parallel.mesh import Mesh
from megaxf.train.export import exporter
from megaxf.train.run_folder import RunFolder

Extra = tuple[Mapping[str, Any], str | PathLike[str] | None]
"""What the training loop has to go on with, and the folder of the tokenizer."""


class Checkpoints:
    """The saving of one run; every method but `busy` is collective, and raises CheckpointError on every rank."""

    def __init__(
        self, run: Run[Any], mesh: Mesh, folder: RunFolder, say: Callable[[str], None], saved_step: int
    ) -> None:
        """saved_step: of the checkpoint that the run goes on from."""
        self.saved_step = saved_step
        """Of the newest checkpoint that is complete."""
        self.seconds = 0.0
        """That the last one took; 0 before there is one."""
        self._run, self._mesh, self._folder, self._say = run, mesh, folder, say
        self._buffers = HostBuffers()
        self._flight: Background[Place] | None = None
        self._step = saved_step
        self._began = self._copied = 0.0

    def begin(self, step: int, last: bool) -> bool:
        """Whether `save` is to be called for a step now: not where that has been done, nor where one is skipped.

        last: no step follows, so nothing is skipped.
        """
        if step == self._step:
            if last:
                self.finish()
            return False
        if self._flight is not None and self._run.checkpoint.when_busy == "skip" and not last:
            self._say(f"no checkpoint of step {step}: that of step {self._step} is still being written")
            return False
        self.finish()
        return True

    def save(self, engine: Engine, step: int, extra: Extra, last: bool) -> None:
        """Save the state after a step; returns when it may change."""
        settings = self._run.checkpoint
        beside = settings.asynchronous and not last
        self._step, self._began = step, time.perf_counter()
        flow = saving(
            self._folder.checkpoints,
            step,
            engine,
            extra[0],
            self._mesh,
            self._buffers if beside else None,
            config=to_yaml(self._run),
            tokenizer=extra[1],
            keep_last=settings.keep_last,
            keep_every=settings.keep_every,
            export=exporter(self._run, step, extra[1]),
        )
        if not beside:
            self._saved(run_flow(self._mesh, flow), "")
            return
        self._flight = Background(self._mesh, flow)
        self._copied = time.perf_counter() - self._began
        self._say(f"step {step} is copied in {self._copied:.1f} s, and written beside the next steps")

    def busy(self) -> bool:
        """Whether this rank's part of a stage is still being done."""
        return self._flight is not None and self._flight.busy()

    def advance(self) -> None:
        """Go on with the checkpoint in flight; called where no rank is busy."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.advance()
        if flight.done:
            self._saved(flight.finish(), " beside training")
        else:
            self._flight = flight

    def finish(self) -> None:
        """Wait until what is in flight is complete."""
        while self._flight is not None:
            self.advance()

    def newest(self) -> int:
        """The step of the newest checkpoint once none is in flight."""
        self.finish()
        return self.saved_step

    def _saved(self, path: Place, how: str) -> None:
        self.saved_step, self.seconds = self._step, time.perf_counter() - self._began
        self._say(f"saved {path} in {self.seconds:.1f} s{how}")

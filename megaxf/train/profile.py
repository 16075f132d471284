"""A window of steps, looked at operation by operation: a Chrome trace of each chosen rank, written into the run folder.

Beside torch's operations a trace has the parts of megaxf.parallel.clock (data, forward, backward, communication,
optimizer, checkpoint) and the steps.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from megaxf.config_metrics import Profile
from megaxf.parallel.mesh import Mesh
from megaxf.train.console import Report


class Profiler:
    """Profiles the steps of the window that this rank goes through; no step costs anything before or after it."""

    def __init__(self, settings: Profile, mesh: Mesh, device: torch.device, folder: Path, report: Report) -> None:
        """folder: for the traces."""
        self._window, self._ranks, self._rank = settings.window(), settings.ranks, mesh.rank
        self._folder, self._report, self._device = folder, report, device
        self._running: profile | None = None
        self._step: record_function | None = None
        self._first = self._last = 0

    def before(self, step: int) -> None:
        """To be called before each step."""
        if step not in self._window or self._rank not in self._ranks:
            return
        if self._running is None:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._device.type == "cuda")
            self._running = profile(activities=activities, record_shapes=True)
            self._running.start()
        self._step = record_function(f"step {step}")
        self._step.__enter__()

    def after(self, step: int) -> None:
        """To be called after each step that has been made."""
        if step not in self._window:
            return
        self._end_step()
        self._first, self._last = self._first or step, step
        if step == self._window[-1]:
            self.close()

    def close(self) -> None:
        """Write what there is; also where the run ends within the window."""
        self._end_step()
        running, self._running = self._running, None
        names = f"steps-{self._first}-{self._last}-rank-"
        if running is not None:
            running.stop()
        if self._last:
            paths = {rank: self._folder / f"{names}{rank:05}.json.gz" for rank in self._ranks}
            if running is None or self._write(running, paths[self._rank]):
                named = ", ".join(map(str, paths.values()))
                self._report.say(f"profiled steps {self._first} to {self._last}: {named}, for https://ui.perfetto.dev")
        self._first = self._last = 0

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _write(self, done: profile, path: Path) -> bool:
        """Whether that went well: a disk that is full ends no run."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            self._report.warn(f"{path} is not written: {error}")
            return False
        return True

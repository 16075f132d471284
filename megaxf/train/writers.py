"""Where scalars of a run go beside metrics.jsonl: TensorBoard, Weights & Biases. All get the same by the same names."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from data_pipeline.format.manifest import write_whole
from megaxf.config import Run
from megaxf.config_errors import ConfigError
from megaxf.config_metrics import Wandb
from megaxf.train.run_folder import RunFolder

PATIENCE = 60.0
"""Seconds for which a run waits for a key at Weights & Biases, and its end for what is still to be sent there."""


class Writer(Protocol):
    """Takes scalars by their tags."""

    def scalars(self, values: Mapping[str, float], step: int, tokens: int) -> None:
        """Write them for a step, up to which the run has read so many tokens."""
        ...

    def flush(self) -> None:
        """Let a reader see what has been written."""
        ...

    def close(self) -> None:
        """Write what is still held."""
        ...


def check(run: Run[Any]) -> None:
    """Raises ConfigError where the run asks for a writer that is not installed."""
    if run.metrics.wandb and find_spec("wandb") is None:
        problem = "metrics.wandb needs the package wandb, which is not installed"
        raise ConfigError("metrics.wandb", [f"{problem}; pip install 'megaxf[wandb]', or remove metrics.wandb"])


def open_writers(run: Run[Any], folder: RunFolder, step: int, tokens: int, warn: Callable[[str], None]) -> list[Writer]:
    """The writers that a run asks for, going on from a step and its tokens (0 and 0: a new run); for rank 0."""
    writers: list[Writer] = []
    if run.metrics.tensorboard:
        writers.append(Lenient("TensorBoard", partial(TensorBoard, folder.tensorboard, step, tokens), warn))
    if run.metrics.wandb:
        config = run.model_dump(mode="json")
        writers.append(Lenient("Weights & Biases", partial(WeightsAndBiases, run.metrics.wandb, folder, config), warn))
    return writers


class Lenient:
    """A writer whose failure, of the network or a full disk, ends nothing: it is said once, and no more is written."""

    def __init__(self, name: str, create: Callable[[], Writer], warn: Callable[[str], None]) -> None:
        self._name, self._warn = name, warn
        self._writer: Writer | None = None
        try:
            self._writer = create()
        except Exception as error:
            self._give_up(error)

    def scalars(self, values: Mapping[str, float], step: int, tokens: int) -> None:
        """See Writer."""
        self._try(lambda writer: writer.scalars(values, step, tokens))

    def flush(self) -> None:
        """See Writer."""
        self._try(lambda writer: writer.flush())

    def close(self) -> None:
        """See Writer."""
        self._try(lambda writer: writer.close())

    def _try(self, work: Callable[[Writer], None]) -> None:
        if self._writer is None:
            return
        try:
            work(self._writer)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        writer, self._writer = self._writer, None
        self._warn(f"{self._name}: {' '.join(str(error).split())}; the run goes on without it")
        if writer is not None:
            with suppress(Exception):
                writer.close()


class TensorBoard:
    """Two TensorBoard runs with the same tags: over steps, and `by_tokens`. Each hides what it held beyond here."""

    def __init__(self, folder: Path, step: int, tokens: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        def board(path: Path, place: int) -> Any:
            return SummaryWriter(str(path), purge_step=place + 1 if place else 0, flush_secs=30)

        self._boards = board(folder, step), board(folder / "by_tokens", tokens)
        self._before, threading.excepthook = threading.excepthook, self._unless_ours

    def scalars(self, values: Mapping[str, float], step: int, tokens: int) -> None:
        """See Writer."""
        for board, place in zip(self._boards, (step, tokens), strict=True):
            for tag, value in values.items():
                board.add_scalar(tag, value, place)

    def flush(self) -> None:
        """See Writer."""
        for board in self._boards:
            board.flush()

    def close(self) -> None:
        """See Writer."""
        with ExitStack() as steps:  # the last one first
            steps.callback(setattr, threading, "excepthook", self._before)
            for board in self._boards:
                steps.callback(board.close)

    def _unless_ours(self, failed: threading.ExceptHookArgs) -> None:
        """The error of a thread that writes here is raised by the next call, too: no traceback of it is printed."""
        if type(failed.thread).__module__ != "tensorboard.summary.writer.event_file_writer":
            self._before(failed)


class WeightsAndBiases:
    """A run of Weights & Biases, whose id lies in the run folder, so that a run that goes on goes on there."""

    def __init__(self, settings: Wandb, folder: RunFolder, config: dict[str, Any]) -> None:
        """config: of the run, to be shown there."""
        import wandb

        if not folder.wandb.exists():
            write_whole(folder.wandb, uuid.uuid4().hex[:8].encode())
        self._run: Any = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=settings.name or folder.path.name,
            mode=settings.mode,
            id=folder.wandb.read_text(encoding="utf-8").strip(),
            resume="allow",
            dir=str(folder.path),
            config=config,
            settings=wandb.Settings(console="off", login_timeout=PATIENCE, finish_timeout=PATIENCE),
        )
        self._first = self._run.step

    def scalars(self, values: Mapping[str, float], step: int, tokens: int) -> None:
        """See Writer. Steps that are there already, which a run that went back makes again, are passed over there."""
        if step >= self._first:
            self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """See Writer: it is sent as it comes."""

    def close(self) -> None:
        """See Writer. What could not be ended is not tried again, which would take as long."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

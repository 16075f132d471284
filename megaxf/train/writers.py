"""Where scalars of a run go beside metrics.jsonl: TensorBoard, Weights & Biases. All get the same by the same names."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
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
        writers.append(TensorBoard(folder.tensorboard, step, tokens))
    if run.metrics.wandb:
        writers.append(WeightsAndBiases(run.metrics.wandb, folder, run.model_dump(mode="json"), warn))
    return writers


class TensorBoard:
    """Two TensorBoard runs with the same tags: over steps, and `by_tokens`. Each hides what it held beyond here."""

    def __init__(self, folder: Path, step: int, tokens: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        def board(path: Path, place: int) -> Any:
            return SummaryWriter(str(path), purge_step=place + 1 if place else 0, flush_secs=30)

        self._boards = board(folder, step), board(folder / "by_tokens", tokens)

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
        for board in self._boards:
            board.close()


class WeightsAndBiases:
    """A run of Weights & Biases, whose id lies in the run folder, so that a run that goes on goes on there.

    What fails there, the network above all, ends nothing: it is said once, and no more is sent.
    """

    def __init__(self, settings: Wandb, folder: RunFolder, config: dict[str, Any], warn: Callable[[str], None]) -> None:
        """config: of the run, to be shown there."""
        self._warn = warn
        self._run: Any = None
        self._try(lambda: self._open(settings, folder, config))

    def scalars(self, values: Mapping[str, float], step: int, tokens: int) -> None:
        """See Writer. Steps that are there already, which a run that went back makes again, are passed over there."""
        if self._run and step >= self._first:
            self._try(lambda: self._run.log(dict(values), step=step))

    def flush(self) -> None:
        """See Writer: it is sent as it comes."""

    def close(self) -> None:
        """See Writer."""
        if self._run:
            self._try(self._run.finish)

    def _open(self, settings: Wandb, folder: RunFolder, config: dict[str, Any]) -> None:
        import wandb

        if not folder.wandb.exists():
            write_whole(folder.wandb, uuid.uuid4().hex[:8].encode())
        self._run = wandb.init(
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

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._run = None
            self._warn(f"Weights & Biases: {' '.join(str(error).split())}; the run goes on without it")

"""The folder of a run: what lies where, and whether it may be used.

config.yaml        the resolved configuration of the last start
environment.json   versions, git state, hosts and devices of each start
metrics.jsonl      a line a step
positions.jsonl    where in its data the run stood at each start, checkpoint and end; see data_pipeline.audit.positions
tensorboard/       the same for TensorBoard
wandb-id           of the run at Weights & Biases
stacks/            where the ranks stood that were lost or stood still
profile/           traces of the steps and ranks that `profile` names
checkpoints/       step-00000012, ..., unless checkpoint.folder names another place
run.lock           of the start that trains now; see megaxf.train.lock
loss.png           drawn when the run ends or stops
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.audit.positions import POSITIONS
from data_pipeline.format.manifest import write_whole
from megaxf.checkpoint import CheckpointError
from megaxf.checkpoint.files import no_folder, place, try_writing
from megaxf.checkpoint.finding import CHECKPOINTS
from megaxf.config import Run, to_yaml
from megaxf.config_errors import ConfigError
from megaxf.train.guards.stop import STOP
from megaxf.train.lock import LOCK, Lock

LOGS = (".log", ".out", ".err")
"""Files that a batch system may put into the folder before the run starts."""
PART = ".part"
"""Of a file that a killed start has not finished."""


class RunFolder:
    """Paths of one run folder."""

    def __init__(self, path: str | Path, checkpoints: str | None = None) -> None:
        """checkpoints: the folder or URL for them, where they are not to lie in the run folder."""
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.positions = self.path / POSITIONS
        self.tensorboard = self.path / "tensorboard"
        self.wandb = self.path / "wandb-id"
        self.profile = self.path / "profile"
        self.stacks = self.path / "stacks"
        self.checkpoints = place(checkpoints or self.path / CHECKPOINTS)
        self._named = checkpoints
        self.plot = self.path / "loss.png"

    def check(self) -> None:
        """Raises ConfigError where the folder is not one of a run, nor free to become one; makes nothing."""
        for path, fault in ((self.path, self._fault), (self.checkpoints, self._checkpoints_fault)):
            if file := no_folder(path):
                raise fault(f"{'is' if file == path else f'lies below {file},'} a file; name another folder")
        if not self.path.is_dir() or self.config.is_file():
            return
        early = {self.stacks.name, STOP, LOCK}
        found = {entry.name for entry in self.path.iterdir() if entry.suffix not in (*LOGS, PART)}
        foreign = sorted(found - early)
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise self._fault(
                f"holds {shown} and no config.yaml, so it is not the folder of a run; name another or an empty one"
            )

    def starts(self, warn: Callable[[str], None]) -> list[dict[str, Any]]:
        """The environments of all starts, oldest first; none where the file is damaged, and `warn` is told."""
        if not self.environment.exists():
            return []
        try:
            found = json.loads(self.environment.read_bytes().decode())
        except ValueError:
            found = None
        if isinstance(found, list):
            return found
        warn(
            f"{self.environment} is damaged, so it no longer tells of the starts before; the next start begins it anew"
        )
        return []

    def write_start(self, run: Run, environment: dict[str, Any], lock: Lock, warn: Callable[[str], None]) -> None:
        """Create the folder where need be, lock it, write the configuration and the environment of this start, and try
        whether checkpoints can be written: a run of weeks ends with one.

        The configuration first: by it a folder is known as one of a run, wherever a start is killed.
        Raises ConfigError where something cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.take()
            lock.sign()
            write_whole(self.config, to_yaml(run).encode())
            starts = [*self.starts(warn), environment]
            write_whole(self.environment, f"{json.dumps(starts, indent=1)}\n".encode())
        except OSError as error:
            raise self._fault(f"cannot be written: {error}") from None
        try:
            try_writing(self.checkpoints)
        except CheckpointError as error:
            raise self._checkpoints_fault(f"cannot be used: {error}; name another folder") from None

    def _fault(self, what: str) -> ConfigError:
        return ConfigError("run_folder", [f"run_folder = {self.path} {what}"])

    def _checkpoints_fault(self, what: str) -> ConfigError:
        return ConfigError("checkpoint.folder", [f"checkpoint.folder = {self._named or self.checkpoints} {what}"])

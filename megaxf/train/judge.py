"""What a start would say of a run file, said without starting: no process group, no GPU, nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megaxf.config import Run, load_run
from megaxf.train import export, writers
from megaxf.train.initial import complete, open_for_check
from megaxf.train.resolved import resolve
from megaxf.train.run_folder import RunFolder


def judge(path: str | Path, overrides: list[str], world_size: int) -> tuple[Run[Any], dict[str, Any]]:
    """(the run of a file, what follows from it on so many ranks, as `resolve` gives it).

    "problems" of the latter keep the run from starting, too. Raises ConfigError, ConvertError and CheckpointError as a
    start does.
    """
    run = load_run(path, overrides, world_size, complete)
    RunFolder(run.run_folder, run.checkpoint.folder).check()
    for check in (export.check, writers.check):
        check(run)
    return run, resolve(run, world_size, open_for_check(run))

"""Tasks of EleutherAI's lm-evaluation-harness on a Hugging Face folder; the library is the extra `harness`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megaxf.generate.errors import GenerateError


def run_tasks(
    folder: Path,
    tasks: Sequence[str],
    *,
    include: Path | None = None,
    batch_size: int = 8,
    limit: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> dict[str, dict[str, Any]]:
    """The metrics of each task by name, as the harness gives them.

    include: a folder with YAML files of further tasks. limit: the first examples of each task.
    dtype, device: by default as the harness chooses. Raises GenerateError where library or tasks are missing.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise GenerateError(f"--harness needs the extra: pip install 'megaxf[harness]' ({error})") from None
    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown:
        raise GenerateError(
            f"the harness has no task {', '.join(unknown)}; see `lm-eval ls tasks`, or --harness-include"
        )
    found = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(folder), "dtype": dtype or "auto"},
        tasks=list(tasks),
        batch_size=batch_size,
        limit=limit,
        device=device,
        task_manager=manager,
        bootstrap_iters=0,
    )
    results: dict[str, dict[str, Any]] = found["results"]
    return results

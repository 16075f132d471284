"""The resolved run as numbers and as a page: what would be trained, on how much, and how. For --check and the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import read_manifest
from megaxf.config import Run, check_world
from megaxf.plan import parameters
from megaxf.plan.conventions import convention_per_token
from megaxf.plan.quantities import quantity
from megaxf.train.feed import open_batches
from megaxf.train.layout import layout, layout_lines
from megaxf.train.schedules import decay_steps, rate_of
from megaxf.train.throughput import flops_per_token, tokens_per_step

MANY_EPOCHS = 4
"""Beyond so many epochs repeated data is worth clearly less than new data (arXiv 2305.16264)."""


def resolve(run: Run, world_size: int) -> dict[str, Any]:
    """Everything that follows from the run on so many ranks, as plain values; no process group, no GPU.

    "problems" of the data would keep the run from starting; "warnings" would not. Raises ConfigError where the run
    cannot be cut over the ranks.
    """
    check_world(run, world_size)
    problems: list[str] = []
    warnings: list[str] = []
    total = run.train.steps * tokens_per_step(run)
    count = parameters.count(run.model)
    return {
        "run_folder": run.run_folder,
        "world_size": world_size,
        "model": {
            "family": run.model.family,
            "parameters": count.total,
            "non_embedding_parameters": count.non_embedding,
        },
        "sources": {name: _source(run, name, problems, warnings) for name in run.data.sources},
        "layout": layout(run, world_size),
        "tokens_per_step": tokens_per_step(run),
        "steps": run.train.steps,
        "tokens": total,
        "tokens_per_parameter": total / count.total,
        "model_flops_per_token": flops_per_token(run),
        "convention_flops_per_token": convention_per_token(run.model, run.data.sequence_length),
        "model_flops": flops_per_token(run) * total,
        "learning_rates": {step: rate_of(run, step) for step in _turning_points(run)},
        "settings": run.model_dump(mode="json"),
        "problems": problems,
        "warnings": warnings,
    }


def _source(run: Run, name: str, problems: list[str], warnings: list[str]) -> dict[str, Any]:
    """What is known about one source; rows and epochs are None where its folder is not here."""
    source = run.data.sources[name]
    share = source.weight / sum(other.weight for other in run.data.sources.values())
    found: dict[str, Any] = {
        "folder": source.folder,
        "share": share,
        "tokens": None,
        "epochs": None,
        "validation": None,
    }
    if not Path(source.folder).exists():
        warnings.append(f"data.sources.{name}.folder = {source.folder} is not on this machine: its data is not checked")
        return found
    try:
        batches = open_batches(run, "train", [name])
        splits = read_manifest(source.folder).splits
    except DataError as error:
        problems.append(f"data.sources.{name}: {error}")
        return found
    found["tokens"] = splits["train"].tokens
    found["validation"] = splits["validation"].tokens if "validation" in splits else 0
    found["epochs"] = share * run.train.steps * run.train.global_batch_size / batches.row_counts[0]
    if found["epochs"] > MANY_EPOCHS:
        warnings.append(
            f"data.sources.{name} is read {found['epochs']:.1f} times; beyond {MANY_EPOCHS} repeats teach little"
        )
    return found


def _turning_points(run: Run) -> list[int]:
    """The updates at which the schedule changes its form."""
    points = {1, max(run.schedule.warmup_steps, 1), run.train.steps}
    if run.schedule.kind == "warmup_stable_decay":
        points.add(max(run.train.steps - decay_steps(run.schedule, run.train.steps), 1))
    return sorted(points)


def page(resolved: dict[str, Any]) -> Table:
    """The resolved run for people, as a table that rich prints."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = [*_rows(resolved).items()]
    rows += [("note", text) for text in resolved["warnings"]] + [("problem", text) for text in resolved["problems"]]
    for label, text in rows:
        table.add_row(label, Text(text, style={"problem": "red", "note": "yellow"}.get(label, "")))
    return table


def _rows(resolved: dict[str, Any]) -> dict[str, str]:
    """Label and text of each line of the page."""
    settings = resolved["settings"]
    train, kept = settings["train"], settings["checkpoint"]["keep_last"]
    batch, length = train["global_batch_size"], settings["data"]["sequence_length"]
    rates = ", ".join(f"step {step:,} {rate:.3g}" for step, rate in resolved["learning_rates"].items())
    return {
        "run folder": resolved["run_folder"],
        "model": _model_line(resolved["model"]),
        **{f"data {name}": _source_line(source) for name, source in resolved["sources"].items()},
        "batch": f"{batch:,} sequences x {length:,} = {resolved['tokens_per_step']:,} tokens a step",
        **layout_lines(resolved["layout"], settings),
        "length": f"{resolved['steps']:,} steps = {quantity(resolved['tokens'])} tokens, "
        f"{resolved['tokens_per_parameter']:.3g} for each parameter",
        "compute": f"{quantity(resolved['model_flops_per_token'])} model FLOPs a token "
        f"({quantity(resolved['convention_flops_per_token'])} as 6N + 12LHQS), {resolved['model_flops']:.3g} in all",
        "schedule": f"{settings['schedule']['kind']}: {rates}",
        "evaluation": _times(settings["evaluate"]["every"], "first and last step"),
        "checkpoints": f"{_times(settings['checkpoint']['every'], 'last step')}, keeping {kept}",
    }


def _model_line(model: dict[str, Any]) -> str:
    inner = model["non_embedding_parameters"]
    return f"{model['family']}, {model['parameters']:,} parameters, {inner:,} of them not in embeddings"


def _times(every: int, always: str) -> str:
    return f"every {every:,} steps, and {always}" if every else always


def _source_line(source: dict[str, Any]) -> str:
    share = f"{source['share']:.1%} of the rows, {source['folder']}"
    if source["tokens"] is None:
        return f"{share} (not checked)"
    validation = f"{source['validation']:,} for validation" if source["validation"] else "none for validation"
    return f"{share}: {source['tokens']:,} tokens, {source['epochs']:.2f} epochs, {validation}"

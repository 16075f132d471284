"""The resolved run as numbers and as a page: what would be trained, on how much, and how. For --check and the start."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from megaxf.config import Run, check_world
from megaxf.config_data import Portion, portions, tokens_before
from megaxf.plan import parameters
from megaxf.plan.conventions import convention_per_token
from megaxf.plan.quantities import quantity
from megaxf.train.initial import Initial
from megaxf.train.layout import layout, layout_lines
from megaxf.train.resolved_data import resolve_sources, source_line
from megaxf.train.schedules import decay_steps, rate_of
from megaxf.train.throughput import flops_per_token


def resolve(run: Run, world_size: int, initial: Initial | None = None) -> dict[str, Any]:
    """Everything that follows from the run on so many ranks, as plain values; no process group, no GPU.

    initial: the trained model that it starts from, if it does.
    "problems" of the data would keep the run from starting; "warnings" would not. Raises ConfigError where the run
    cannot be cut over the ranks.
    """
    check_world(run, world_size)
    problems: list[str] = []
    warnings = list(initial.warnings) if initial else []
    after = run.train.steps + 1
    total = tokens_before(run, after)
    phases = portions(run.data, run.train.global_batch_size)
    starts = [tokens_before(run, min(phase.from_step, after)) for phase in phases] + [total]
    work = [flops_per_token(run, phase.sequence_length) for phase in phases]
    count = parameters.count(run.model)
    return {
        "run_folder": run.run_folder,
        "world_size": world_size,
        "model": {
            "family": run.model.family,
            "parameters": count.total,
            "non_embedding_parameters": count.non_embedding,
        },
        "init": initial and _initial(initial),
        "sources": resolve_sources(run, problems, warnings),
        "layout": layout(run, world_size),
        "phases": [phase._asdict() for phase in phases],
        "tokens_per_step": phases[0].tokens,
        "steps": run.train.steps,
        "tokens": total,
        "tokens_per_parameter": total / count.total,
        "model_flops_per_token": work[0],
        "convention_flops_per_token": convention_per_token(run.model, run.data.sequence_length),
        "model_flops": sum(each * (end - start) for each, (start, end) in zip(work, pairwise(starts), strict=True)),
        "learning_rates": {step: rate_of(run, step) for step in _turning_points(run)},
        "settings": run.model_dump(mode="json"),
        "problems": problems,
        "warnings": warnings,
    }


def _initial(initial: Initial) -> dict[str, Any]:
    return {
        "path": str(initial.path),
        "dtype": initial.dtype,
        "parameters": initial.parameters,
        "vocab_size": initial.vocab_size,
    }


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
    rates = ", ".join(f"step {step:,} {rate:.3g}" for step, rate in resolved["learning_rates"].items())
    return {
        "run folder": resolved["run_folder"],
        "model": _model_line(resolved["model"]),
        **({"weights": _initial_line(resolved["init"], settings)} if resolved["init"] else {}),
        **{f"data {name}": source_line(source) for name, source in resolved["sources"].items()},
        "batch": "; ".join(_phase_line(Portion(**phase)) for phase in resolved["phases"]),
        **layout_lines(resolved["layout"], settings),
        "length": f"{resolved['steps']:,} steps = {quantity(resolved['tokens'])} tokens, "
        f"{resolved['tokens_per_parameter']:.3g} for each parameter",
        "compute": f"{quantity(resolved['model_flops_per_token'])} model FLOPs a token "
        f"({quantity(resolved['convention_flops_per_token'])} as 6N + 12LHQS), {resolved['model_flops']:.3g} in all",
        "schedule": f"{settings['schedule']['kind']}: {rates}",
        "evaluation": _times(settings["evaluate"]["every"], "first and last step"),
        "checkpoints": _checkpoints_line(resolved),
    }


def _phase_line(phase: Portion) -> str:
    start = f"from step {phase.from_step:,} " if phase.from_step > 1 else ""
    return f"{start}{phase.global_batch_size:,} sequences x {phase.sequence_length:,} = {phase.tokens:,} tokens a step"


def _model_line(model: dict[str, Any]) -> str:
    inner = model["non_embedding_parameters"]
    return f"{model['family']}, {model['parameters']:,} parameters, {inner:,} of them not in embeddings"


def _checkpoints_line(resolved: dict[str, Any]) -> str:
    settings = resolved["settings"]["checkpoint"]
    line = f"{_times(settings['every'], 'last step')}, keeping {settings['keep_last']}"
    if not settings["every"] or not settings["asynchronous"]:
        return line
    copy = 12 * resolved["model"]["parameters"] / resolved["world_size"]
    return f"{line}, written beside training from a copy of {copy / 1e9:.3g} GB in the memory of each rank's host"


def _initial_line(init: dict[str, Any], settings: dict[str, Any]) -> str:
    known, words = init["vocab_size"], settings["model"]["vocab_size"]
    kind = settings["init"]["vocabulary_extension"]
    rows = f"; {words - known:,} new tokens after {known:,}: {kind}" if words > known else ""
    return f"{init['path']}, {init['parameters']:,} parameters in {init['dtype']}{rows}"


def _times(every: int, always: str) -> str:
    return f"every {every:,} steps, and {always}" if every else always

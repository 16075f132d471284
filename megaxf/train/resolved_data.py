"""What a run takes from its sources, as far as their data is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from megaxf.config import Run
from megaxf.config_data import samples_before
from megaxf.train.sources import check_files, epoch_warnings, manifest_of, open_batches

MANY_EPOCHS = 4
"""Beyond so many epochs repeated data is worth clearly less than new data (arXiv 2305.16264)."""


def resolve_sources(run: Run, problems: list[str], warnings: list[str]) -> dict[str, dict[str, Any]]:
    """What is known about each source; what takes its data is None where that is not here. Adds to the lists."""
    found = {name: _alone(run, name, problems, warnings) for name in run.data.sources}
    if problems or any(source["tokens"] is None for source in found.values()):
        return found
    try:
        batches = open_batches(run, "train")
        uses = batches.use(samples_before(run, run.train.steps + 1))
        warnings += epoch_warnings(run, batches)
    except DataError as error:
        problems.append(f"data: {error}")
        return found
    tokens = sum(use.tokens for use in uses)
    for use in uses:
        found[use.name] |= {"share": use.tokens / tokens, "epochs": use.epochs}
        if use.epochs > MANY_EPOCHS:
            warnings.append(
                f"data.sources.{use.name} is read {use.epochs:.1f} times; beyond {MANY_EPOCHS} repeats teach little"
            )
    return found


def _alone(run: Run, name: str, problems: list[str], warnings: list[str]) -> dict[str, Any]:
    source = run.data.sources[name]
    found: dict[str, Any] = {
        "folder": source.dataset or source.folder,
        "share": _share(run, name),
        "tokens": None,
        "epochs": None,
        "validation": None,
    }
    if source.dataset:
        warnings.append(
            f"data.sources.{name}.dataset = {source.dataset} is tokenised while training: it is not checked"
        )
        return found
    if not Path(source.folder).exists():
        where = "in a store" if "://" in source.folder else "not on this machine"
        warnings.append(f"data.sources.{name}.folder = {source.folder} is {where}: its data is not checked")
        return found
    try:
        check_files(open_batches(run, "train", [name]))
        splits = manifest_of(run, name).splits
    except DataError as error:
        problems.append(f"data.sources.{name}: {error}")
        return found
    validation = splits["validation"].tokens if "validation" in splits else 0
    return found | {"tokens": splits["train"].tokens, "validation": validation}


def _share(run: Run, name: str) -> float | None:
    """The source's part of the tokens at the start, where that does not take the data to tell."""
    amounts = {other: source.share[0] for other, source in run.data.sources.items()}
    return None if run.data.sources[name].share[1] == "epochs" else amounts[name] / sum(amounts.values())


def source_line(source: dict[str, Any]) -> str:
    """A line of the page."""
    share = "" if source["share"] is None else f"{source['share']:.1%} of the tokens, "
    share += source["folder"]
    if source["tokens"] is None:
        return f"{share} (not checked)"
    validation = f"{source['validation']:,} for validation" if source["validation"] else "none for validation"
    epochs = "" if source["epochs"] is None else f"{source['epochs']:.2f} epochs, "
    return f"{share}: {source['tokens']:,} tokens, {epochs}{validation}"

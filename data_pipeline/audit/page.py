"""The account of a run's data, and the documents of a step, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from data_pipeline.audit.batch import Passage, StepReader
from data_pipeline.audit.coverage import Coverage

START_TOKENS = 24
"""Of each passage, whose text a line shows."""

_COLUMNS = ("rank", "row", "at", "source", "document", "from", "its tokens", "begins")


def print_coverage(found: Coverage, console: Console) -> None:
    """The starts, the sources, and the verdict."""

    def say(message: str, style: str = "") -> None:
        console.print(message, style=style, highlight=False, soft_wrap=True, markup=False)

    console.print(_table(("start", "steps", "samples", "data ranks", "end"), _starts(found)))
    console.print(_table(("source", "tokens read", "epochs", "tokens passed over"), _sources(found)))
    for lost in found.lineage.lost:
        say(f"steps {lost.first_step:,} to {lost.last_step:,} were lost, and made again from {lost.restarted} on")
    for first, end in found.skipped:
        say(f"samples {first:,} to {end - 1:,} were skipped, as declared")
    for change in found.changes:
        say(change)
    for problem in found.problems:
        say(problem, "red")
    if not found.problems:
        say(
            f"all {found.samples:,} samples were read once and in order, and no row came twice in an epoch of its "
            "source",
            "green",
        )


def print_batch(reader: StepReader, passages: Iterable[Passage], whole: bool, console: Console) -> None:
    """A line for each passage as it is found; whole: with all of its text."""
    widths = (4, 5, 6, 10, 10, 32, 18, 0)

    def line(values: tuple[Any, ...]) -> None:
        cells = [str(value).ljust(width) for value, width in zip(values, widths, strict=True)]
        console.print(" ".join(cells).rstrip(), highlight=False, soft_wrap=True, markup=False)

    line(_COLUMNS)
    for one in passages:
        text = reader.text(one, None if whole else START_TOKENS) or ""
        begins = "" if whole else repr(text)[1:-1][:60]
        tokens = f"{one.offset}-{one.offset + one.tokens} of {one.document_tokens}"
        line((one.rank, one.row, one.column, one.source, one.document, one.origin or "-", tokens, begins))
        if whole:
            console.print(text, highlight=False, soft_wrap=True, markup=False)


def _starts(found: Coverage) -> Iterable[tuple[str, ...]]:
    for part in found.lineage.parts:
        samples = f"{part.end.samples - part.first.samples:,}"
        end = "recorded" if part.session.ended else "not recorded"
        steps = f"{part.first.step + 1:,} to {part.end.step:,}" if part.end.step > part.first.step else "none"
        yield part.session.time, steps, samples, str(part.session.data_ranks), end


def _sources(found: Coverage) -> Iterable[tuple[str, ...]]:
    for name, tokens in sorted(found.tokens.items()):
        epochs = f"{found.epochs[name]:.3f}" if name in found.epochs else "-"
        passed_over = f"{found.passed_over[name]:,}" if name in found.passed_over else "-"
        yield name, f"{tokens:,}", epochs, passed_over


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for index, title in enumerate(header):
        table.add_column(title, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table

"""Ledgers as numbers, as a page of text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megaxf.plan.memory.ledger import NOT_COUNTED, Ledger
from megaxf.plan.memory.rows import GROUPS, STEP

GIB = 2**30

COLOURS = ("#3b6fb6", "#8fb8e8", "#274b7a", "#2e8b57", "#98d4ae", "#c5e6d3", "#e0a458", "#d9d9d9")
"""Of the groups, in their order."""


def values(ledger: Ledger) -> dict[str, Any]:
    """The ledger of one stage for JSON, in bytes."""
    return {
        "stage": ledger.stage,
        "peak": ledger.peak,
        "moment": ledger.moment,
        "allowances": ledger.allowances,
        "moments": {moment: ledger.at(moment) for moment in STEP},
        "host": ledger.off_device("host"),
        "nvme": ledger.off_device("nvme"),
        "rows": [row._asdict() for row in ledger.rows],
    }


def page(ledgers: Sequence[Ledger], limit: float | None = None) -> str:
    """A line a stage, and every row of the one that needs the most. limit: bytes that a device has."""
    largest = max(ledgers, key=lambda ledger: ledger.peak)
    return "\n".join([*_summary(ledgers, limit), "", *_rows(largest), "", *_moments(largest), "", *_remarks()])


def _summary(ledgers: Sequence[Ledger], limit: float | None) -> Iterator[str]:
    yield f"{'GiB of a rank':<16} {'counted':>9} {'allowances':>11} {'together':>9} {'on the host':>12} {'on nvme':>9}"
    for ledger in ledgers:
        together = ledger.peak + ledger.allowances
        line = (
            f"stage {ledger.stage:<10} {_gib(ledger.peak):>9} {_gib(ledger.allowances):>11} {_gib(together):>9} "
            f"{_gib(ledger.off_device('host')):>12} {_gib(ledger.off_device('nvme')):>9}"
        )
        if limit is not None:
            room = limit - together
            line += f"   {'fits, with' if room >= 0 else 'does not fit by'} {_gib(abs(room))}"
            line += " to spare" if room >= 0 else ""
        yield line


def _rows(ledger: Ledger) -> Iterator[str]:
    yield f"Stage {ledger.stage}, at the moment of the most: {STEP[ledger.moment]}"
    yield "(in brackets: held at other moments)"
    for group, meaning in GROUPS.items():
        rows = [row for row in ledger.rows if row.group == group]
        if rows:
            yield f"{group}: {meaning}"
        for row in rows:
            size = _gib(row.bytes)
            shown = size if ledger.moment in row.when else f"({size})"
            place = "" if row.place == "device" else f", on {'the host' if row.place == 'host' else row.place}"
            yield f"  {row.item:<42} {shown:>10}   {row.formula}{place}"


def _moments(ledger: Ledger) -> Iterator[str]:
    yield f"Stage {ledger.stage}, counted at each moment"
    for moment, meaning in STEP.items():
        yield f"  {meaning:<70} {_gib(ledger.at(moment)):>8}"


def _remarks() -> Iterator[str]:
    yield "Not counted:"
    for text in NOT_COUNTED:
        yield f"  {text}"


def _gib(count: float) -> str:
    """Three digits after the point: small models have small numbers."""
    return f"{count / GIB:.3f}"


def draw(ledgers: Sequence[Ledger], image: Path, limit: float | None = None) -> None:
    """A bar a stage, stacked by group at the moment of the most. limit: bytes that a device has, as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.5 + 0.42 * len(ledgers) + 0.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    starts = [0.0] * len(ledgers)
    for group, colour in zip(GROUPS, COLOURS, strict=True):
        sizes = [ledger.at(ledger.moment, group) / GIB for ledger in ledgers]
        if any(sizes):
            hatch = "////" if group == "allowance" else None
            axes.barh(range(len(ledgers)), sizes, left=starts, color=colour, height=0.78, label=group, hatch=hatch)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for place, total in enumerate(starts):
        axes.annotate(f" {total:.3g}", (total, place), va="center", fontsize=9)
    if limit is not None:
        axes.axvline(limit / GIB, color="#b03030", linewidth=1.5, label=f"memory {limit / GIB:.3g}")
    axes.set_xlim(0, 1.08 * max(*starts, (limit or 0) / GIB))
    axes.set_yticks(range(len(ledgers)), [f"stage {ledger.stage}" for ledger in ledgers])
    axes.set_ylim(len(ledgers) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("GiB of a rank, when it holds the most")
    figure.legend(loc="outside upper center", ncols=9, frameon=False, fontsize=8.5, columnspacing=1.0)
    figure.savefig(image)

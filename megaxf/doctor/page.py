"""The checks of all hosts as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from megaxf.doctor.check import Check

COLOURS = {"good": "green", "note": "yellow", "bad": "red"}


def page(hosts: Mapping[str, Sequence[Check]], cluster: Sequence[Check], console: Console) -> None:
    """Prints everything of the first host, of the others what is not good, and the cluster."""
    for number, (host, checks) in enumerate(hosts.items()):
        shown = [check for check in checks if check.verdict != "good" or number == 0]
        if shown:
            console.print(_table(host, shown))
    if cluster:
        console.print(_table("all ranks together", cluster))
    everything = [check for checks in hosts.values() for check in checks] + list(cluster)
    counts = {kind: sum(check.verdict == kind for check in everything) for kind in COLOURS}
    worst = "bad" if counts["bad"] else "note" if counts["note"] else "good"
    text = f"{counts['good']} good, {counts['note']} to note, {counts['bad']} bad"
    console.print(text, style=COLOURS[worst], highlight=False)


def _table(title: str, checks: Sequence[Check]) -> Table:
    table = Table("", "", "found", "what to do", title=title, title_justify="left", show_edge=False)
    for check in checks:
        colour = COLOURS[check.verdict]
        table.add_row(f"[{colour}]{check.verdict}[/{colour}]", check.name, check.found, check.advice)
    return table

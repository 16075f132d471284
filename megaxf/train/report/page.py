"""A report as one HTML file that needs no other."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

from megaxf.plan.quantities import quantity
from megaxf.train.console import duration
from megaxf.train.report.facts import Facts

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 1.6em }
table { border-collapse: collapse } td, th { padding: .2em 1.2em .2em 0; text-align: left; vertical-align: top }
tr + tr { border-top: 1px solid #ddd } img { width: 100% } progress { width: 100%; height: 1.2em }
"""


def page(facts: Facts, picture: bytes) -> str:
    """HTML with the picture in it."""
    said, image = facts.summary(), base64.b64encode(picture).decode()
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{html.escape(said['run'])}</title><style>{STYLE}</style></head><body>",
            f"<h1>{html.escape(said['run'])}</h1>",
            f'<progress value="{said["step"]}" max="{said["steps"]}"></progress>',
            _table((), lines(facts)),
            f'<p><img alt="curves of the run" src="data:image/png;base64,{image}"></p>',
            "<h2>Data</h2>",
            _table(("source", "tokens", "share", "epochs"), _sources(said)),
            "<h2>Starts</h2>",
            _table(("time", "after step", "data ranks"), _starts(facts)),
            "<h2>Found by guards</h2>",
            _table(("step", "what", "action", "why"), _findings(facts)) if facts.findings else "<p>Nothing.</p>",
            "</body></html>",
        ]
    )


def lines(facts: Facts) -> list[tuple[str, str]]:
    """(name, text) of what a reader wants to know first."""
    said = facts.summary()
    devices = ", ".join(f"{number} x {name}" for name, number in said["devices"].items())
    validation = ", ".join(f"{source} {loss:.4f}" for source, loss in said["validation"].items())
    found = [
        ("model", f"{quantity(said['parameters'])} parameters"),
        ("progress", f"step {said['step']:,} of {said['steps']:,}, {quantity(said['tokens'])} tokens"),
        ("loss", "none yet" if said["loss"] is None else f"{said['loss']:.4f}"),
        ("validation loss", validation or "none yet"),
        ("devices", f"{devices} on {said['hosts']} {'host' if said['hosts'] == 1 else 'hosts'}"),
        ("starts", f"{said['starts']}, and {said['findings']} findings of guards"),
    ]
    if said["tokens_per_second"] is not None:
        found.append(("pace of late", f"{quantity(said['tokens_per_second'])} tokens/s, MFU {said['mfu']:.1%}"))
    if said["times"]:
        shares = [f"{name.replace('_', ' and ')} {share:.1%}" for name, share in said["times"].items()]
        found.append(("time of late went for", ", ".join(shares)))
    found.append(
        ("time", f"{duration(said['trained_seconds'])} of steps so far, {duration(said['seconds_left'])} to come")
    )
    if said["dollars"] is not None:
        found.append(("cost", f"${said['dollars']:,.2f} so far, ${said['dollars_left']:,.2f} to come"))
    return found


def _sources(said: dict[str, Any]) -> Iterable[Sequence[str]]:
    whole = max(1, sum(said["tokens_of_sources"].values()))
    for name, tokens in said["tokens_of_sources"].items():
        epochs = said["epochs"].get(name)
        yield name, quantity(tokens), f"{tokens / whole:.1%}", "unknown" if epochs is None else f"{epochs:.3f}"


def _starts(facts: Facts) -> Iterable[Sequence[str]]:
    for session in facts.sessions:
        yield session.time, f"{session.points[0].step:,}", f"{session.data_ranks:,}"


def _findings(facts: Facts) -> Iterable[Sequence[str]]:
    for one in facts.findings:
        yield f"{one['at_step']:,}", str(one.get("found", "")), str(one.get("action", "")), str(one.get("why", ""))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "<tr>" + "".join(f"<th>{html.escape(text)}</th>" for text in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table>{titles}{body}</table>"

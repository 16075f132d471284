"""Advice as numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megaxf.plan.laws.page import table
from megaxf.plan.memory.advice import Way, fullest, need, reasons
from megaxf.plan.memory.ledger import Ledger
from megaxf.plan.memory.page import GIB
from megaxf.plan.memory.rows import STEP

REMEDIES = {
    "weights": "ZeRO 3, tensor and pipeline parallelism",
    "gradients": "ZeRO 2, tensor and pipeline parallelism",
    "optimizer": "ZeRO 1 over more ranks, offloading",
    "activations": "recomputation, smaller micro-batches, more ranks to a sequence",
    "loss": "tensor and context parallelism",
    "workspace": "smaller micro-batches, more ranks to a sequence",
    "buffers": "follow weights and gradients",
    "allowance": "estimated, not counted",
}
"""Group of the ledger -> what makes it smaller."""


def text(settings: Any) -> str:
    """Settings as they are written behind a run file."""
    return " ".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    )


def values(found: Sequence[Ledger], ways: Sequence[Way], limit: float, seconds: float) -> dict[str, Any]:
    """For JSON; bytes and seconds. seconds: of the run's own step."""
    return {
        "limit": limit,
        "need": need(found),
        "fits": need(found) <= limit,
        "seconds": seconds,
        "reasons": [reason._asdict() for reason in reasons(fullest(found))],
        "ways": [way._asdict() | {"text": text(way.settings), "extra_time": way.seconds / seconds - 1} for way in ways],
    }


def page(advice: dict[str, Any], hardware: str, stage: int, moment: str) -> str:
    """What `values` gave, for people. stage and moment: of the fullest rank."""
    parts = _why(advice, stage, moment), _ways(advice, hardware)
    return "\n\n".join("\n".join(lines) for lines in parts)


def _why(advice: dict[str, Any], stage: int, moment: str) -> Iterator[str]:
    yield (
        f"Why it does not fit: a rank of stage {stage} needs {advice['need'] / GIB:.1f} GiB of "
        f"{advice['limit'] / GIB:.4g} {STEP[moment]}"
    )
    rows = []
    for reason in advice["reasons"]:
        share, item = reason["bytes"] / advice["need"], f"{reason['item']} {reason['item_bytes'] / GIB:.1f}"
        rows.append([reason["group"], f"{reason['bytes'] / GIB:.1f}", f"{share:.0%}", item, REMEDIES[reason["group"]]])
    yield from table(rows, ["", "GiB", "", "most of it", "what helps"], left=(0, 3, 4))


def _ways(advice: dict[str, Any], hardware: str) -> Iterator[str]:
    if not advice["ways"]:
        yield "No three changes of layout make it fit: more ranks, or a smaller model."
        return
    yield f"The cheapest ways to make it fit, each a valid run; time as predicted for {hardware}"
    rows = []
    for place, way in enumerate(advice["ways"], start=1):
        host = f"{way['host'] / GIB:.1f}" if way["host"] else "-"
        rows.append([f"{place}.", f"{way['need'] / GIB:.1f}", host, f"{way['extra_time']:+.1%}", way["text"]])
    yield from table(rows, ["", "GiB", "on the host", "time of a step", "settings to add"], left=(0, 4))

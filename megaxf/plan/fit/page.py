"""The report of a fit as a page of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megaxf.plan.laws.page import figure, table

MANY = 10
"""Outliers on the page; JSON has all."""


def page(found: dict[str, Any]) -> str:
    """The page of `report.values`."""
    parts = (_surface(found), _exponents(found), _predictions(found), _checks(found), _outliers(found))
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _surface(found: dict[str, Any]) -> Iterator[str]:
    law, start = found["approach3"], found["approach3"]["start"]
    left = f", {found['left_out']} rows left out as outliers" if found["left_out"] else ""
    left += f", {found['repeated']} that stood there twice counted once" if found["repeated"] else ""
    yield f"L = E + A / N^alpha + B / D^beta through {found['runs']} runs{left}; N counts {found['counts']} parameters"
    rows = [
        [name, repr(value), "{:.6g} to {:.6g}".format(*law["interval"][name])]
        for name, value in law["constants"].items()
    ]
    yield from table(rows, ["", "", f"{found['level']:.0%} of {found['bootstraps']} bootstraps"])
    yield f"  sum of Huber losses {law['objective']:.8g} at delta {law['huber_delta']:g} (of ln L)"
    yield f"  {start['agreeing']} of {start['tried']} starts end here; the first of them: {start['won']}"
    yield "  A and B lie at N = 1 and D = 1, far from any run: judge the law by its predictions, not by them"


def _exponents(found: dict[str, Any]) -> Iterator[str]:
    yield "N* ~ C^a by three approaches"
    surface, refused = found["approach3"], []
    rows = [["3, surface", f"{surface['exponent']:.4f}", _ends(surface["interval"]["exponent"])]]
    for number, label in (("2", "2, iso-FLOP parabolas"), ("1", "1, envelope of curves")):
        law = found[f"approach{number}"]
        if "refused" in law:
            refused.append(f"  {label}: none, {law['refused']}")
        else:
            rows.append([label, f"{law['exponent']:.4f}", _ends(law["interval"])])
    yield from table(rows)
    yield from refused
    if "bias" in found["approach2"]:
        bias = found["approach2"]["bias"]
        low, high = bias["size"]
        yield (
            f"  without noise, on the surface of approach 3, these parabolas give {low:.4f} to {high:.4f} of the true "
            f"N* and {bias['exponent']:+.4f} in a"
        )


def _predictions(found: dict[str, Any]) -> Iterator[str]:
    yield f"Optima by approach 3, with {found['level']:.0%} intervals"
    names = ("parameters", "tokens", "tokens_per_parameter", "loss")
    rows = []
    for row in found["predictions"]:
        rows.append([figure("flops", row["flops"])])
        for name in names:
            low, high = (figure(name, end) for end in row[name]["interval"])
            rows[-1].append(f"{figure(name, row[name]['value'])} ({low} to {high})")
    yield from table(rows, ["FLOPs", "parameters", "tokens", "tokens per parameter", "loss"])


def _checks(found: dict[str, Any]) -> Iterator[str]:
    check = found["variable_projection"]
    constants = ", ".join(f"{name} {value:.5g}" for name, value in check["constants"].items())
    yield "Cross-check: least squares on the loss itself, by variable projection (no starts)"
    yield f"  a {check['exponent']:.4f}; {constants}"
    yield "  what differs from approach 3 is what the choice of loss is worth"


def _outliers(found: dict[str, Any]) -> Iterator[str]:
    if not found["outliers"]:
        return
    yield f"Outliers: {len(found['outliers'])} runs lie beyond 5 robust standard deviations"
    rows = [
        [row["run"], *(figure(key, row[name]) for key, name in _COLUMNS), f"{row['residual']:+.2%}"]
        for row in found["outliers"][:MANY]
    ]
    yield from table(rows, ["", "parameters", "tokens", "loss", "off the law"])
    if len(found["outliers"]) > MANY:
        yield f"  and {len(found['outliers']) - MANY} more"
    others = found["without_outliers"]
    yield f"  without them a is {others['exponent']:.4f}; mark rows that are wrong with outlier = 1"


_COLUMNS = (("parameters", "params"), ("tokens", "tokens"), ("loss", "loss"))


def _ends(ends: list[float] | None) -> str:
    return "{:.4f} to {:.4f}".format(*ends) if ends else ""

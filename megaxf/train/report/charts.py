"""The curves of a report as one picture."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from megaxf.train.plots import smooth
from megaxf.train.report.facts import Facts

MANY = 100
"""Points from which on a curve is drawn with its running mean."""
HEAP = ("#d55e00", "#b5dcf0", "#e6a100", "#0072b2", "#cc79a7", "#bbbbbb")
"""Colours of what lies upon one another: neighbours differ in hue and in lightness, for all eyes and on paper."""


def picture(facts: Facts) -> bytes:
    """PNG of loss, throughput, gradient norm, learning rate, losses of sources, and where the time went.

    Dotted lines are restarts, red marks what guards have found.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(14, 11.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 3).flatten()
    several = any(record.get("source_losses") for record in facts.steps)
    drawn: tuple[tuple[str, Callable[[Any, Facts], None]], ...] = (
        ("loss (nats a token)", _loss),
        ("tokens a second", _curve_of("tokens_per_second")),
        ("gradient norm", _curve_of("gradient_norm")),
        ("learning rate", lambda axes, facts: _curve(axes, facts, "learning_rate", mean=False)),
        ("training loss of sources", _sources) if several else ("seconds a step", _curve_of("seconds")),
        ("share of a step's time", _times),
        ("share of the peak", _shares),
        ("gradient norm of groups of layers", _groups_of("gradient_norm")),
        ("update over weights", _groups_of("update_ratio")),
    )
    for axes, (title, draw) in zip(panels, drawn, strict=True):
        draw(axes, facts)
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.set_xlabel("step")
        for step in facts.restarts:
            axes.axvline(step, color="grey", linestyle=":", linewidth=1)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    panels[1].yaxis.set_major_formatter(EngFormatter(sep=""))
    held = io.BytesIO()
    figure.savefig(held, format="png")
    return held.getvalue()


def _points(facts: Facts, name: str) -> tuple[list[int], list[float]]:
    found = [(record["step"], record[name]) for record in facts.steps if record.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _curve(axes: Any, facts: Facts, name: str, mean: bool = True, label: str | None = None) -> None:
    steps, values = _points(facts, name)
    many = mean and len(steps) > MANY
    (line,) = axes.plot(steps, values, linewidth=1, alpha=0.3 if many else 0.9, label=None if many else label)
    if many:
        axes.plot(steps, smooth(values, len(steps) // 50), color=line.get_color(), label=label)


def _curve_of(name: str) -> Callable[[Any, Facts], None]:
    return lambda axes, facts: _curve(axes, facts, name)


def _loss(axes: Any, facts: Facts) -> None:
    _curve(axes, facts, "loss", label="train")
    for source, records in facts.evaluations.items():
        places = [record["step"] for record in records], [record["loss"] for record in records]
        axes.plot(*places, marker="o", markersize=3, label=f"validation: {source}")
    marks = [(one["at_step"], one["loss"]) for one in facts.findings if one.get("loss") is not None]
    if marks:
        axes.plot(*zip(*marks, strict=True), "rv", label="found by guards")


def _sources(axes: Any, facts: Facts) -> None:
    names = sorted({name for record in facts.steps for name in record.get("source_losses", {})})
    for name in names:
        found = [(record["step"], record["source_losses"][name]) for record in facts.steps
                 if record.get("source_losses", {}).get(name) is not None]  # fmt: skip
        values = [value for _, value in found]
        axes.plot([step for step, _ in found], smooth(values, max(1, len(values) // 50)), linewidth=1, label=name)


def _shares(axes: Any, facts: Facts) -> None:
    for name, label in (("mfu", "MFU"), ("hfu", "HFU")):
        _curve(axes, facts, name, label=label)
    axes.set_ylim(0, None)


def _times(axes: Any, facts: Facts) -> None:
    """What the time went for, one upon the other, each point of as many steps as fill the picture."""
    found = [record for record in facts.steps if record.get("times")]
    if not found:
        return
    names, width = list(found[0]["times"]), -(-len(found) // MANY)
    heaps = [found[first : first + width] for first in range(0, len(found), width)]
    sums = {name: [sum(record["times"].get(name, 0.0) for record in heap) for heap in heaps] for name in names}
    whole = [sum(parts) for parts in zip(*sums.values(), strict=True)]
    shares = [[part / all_of_it for part, all_of_it in zip(parts, whole, strict=True)] for parts in sums.values()]
    steps = [heap[-1]["step"] for heap in heaps]
    if len(steps) == 1:
        steps, shares = [steps[0] - 1, steps[0]], [share * 2 for share in shares]
    axes.stackplot(steps, *shares, labels=[name.replace("_", " and ") for name in names], colors=HEAP)
    axes.set_ylim(0, 1)


def _groups_of(number: str) -> Callable[[Any, Facts], None]:
    """A line for each group of layers, from the first layers in blue to the last in yellow."""

    def draw(axes: Any, facts: Facts) -> None:
        from matplotlib import colormaps

        found = [(record["step"], record["groups"][number]) for record in facts.steps if record.get("groups")]
        names = list(found[0][1]) if found else []
        for place, name in enumerate(names):
            points = [(step, values.get(name) or None) for step, values in found]
            axes.plot(*zip(*points, strict=True), marker=".", linewidth=1, label=name,
                      color=colormaps["viridis"](place / max(1, len(names) - 1)))  # fmt: skip
        axes.set_yscale("log")

    return draw

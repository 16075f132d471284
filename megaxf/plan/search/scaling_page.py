"""Scaling curves as numbers, as a page and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from megaxf.plan.laws.page import table
from megaxf.plan.quantities import quantity
from megaxf.plan.search.failures import Failures
from megaxf.plan.search.find import describe
from megaxf.plan.search.scaling import Point
from megaxf.plan.search.space import Task


def values(points: Sequence[Point], tokens: float, price: float | None) -> list[dict[str, Any]]:
    """For JSON."""
    return [_values(point, tokens, price) for point in points]


def _values(point: Point, tokens: float, price: float | None) -> dict[str, Any]:
    size, failures = point.world_size, point.failures
    if point.chosen is None:
        return {"world_size": size, "reason": point.reason}
    return {
        "world_size": size,
        "layout": point.chosen.candidate._asdict(),
        "step_seconds": float(point.chosen.step.seconds),
        "tokens_per_second": point.tokens_per_second,
        "mfu": float(point.chosen.step.mfu),
        "hours_between_failures": failures.mean_seconds(size) / 3600,
        "save_every_seconds": failures.interval(size),
        "lost_share": 1 - 1 / failures.factor(size),
        "days": point.days(tokens),
        "dollars": None if price is None else point.dollars(tokens, price),
    }


def page(points: Sequence[Point], task: Task, tokens: float, price: float | None) -> str:
    """A row for each number of GPUs."""
    batch = task.global_batch_size * task.sequence_length
    title = f"{quantity(tokens)} tokens in steps of {quantity(batch)} on {task.hardware.name}"
    head = ["GPUs", "tokens/s", "MFU", "against the least", "fails every", "save every", "lost", "days", "dollars"]
    least = next(point for point in points if point.chosen)
    rows = [_row(point, least, tokens, price) for point in points if point.chosen]
    lines = [title, *table(rows, [*head, "layout"], left=(0, 9))]
    lines += [f"  {point.world_size:,}: {point.reason}" for point in points if not point.chosen]
    return "\n".join([*lines, "", *_remarks(points[0].failures)])


def _row(point: Point, least: Point, tokens: float, price: float | None) -> list[str]:
    assert point.chosen is not None
    found, size = _values(point, tokens, price), point.world_size
    ideal = least.tokens_per_second * size / least.world_size
    return [
        f"{size:,}",
        quantity(found["tokens_per_second"]),
        f"{found['mfu']:.1%}",
        f"{found['tokens_per_second'] / ideal:.0%}",
        f"{found['hours_between_failures']:,.1f} h",
        f"{found['save_every_seconds'] / 60:,.0f} min",
        f"{found['lost_share']:.1%}",
        f"{found['days']:,.1f}",
        "-" if price is None else quantity(found["dollars"]),
        describe(point.chosen.candidate, size),
    ]


def _remarks(failures: Failures) -> Iterator[str]:
    yield (
        f"lost: saves of {failures.save_seconds:g} s, restarts of {failures.restart_seconds:g} s and the work since "
        f"the last save, at a failure every {failures.gpu_hours:,.0f} GPU-hours; saved as seldom or as often as is best"
    )
    yield "  (Daly 2006, doi 10.1016/j.future.2004.11.016; Llama 3's 419 interruptions, arXiv 2407.21783, by default)"


def draw(points: Sequence[Point], tokens: float, price: float | None, image: Path) -> None:
    """Tokens a second beside what they would be without losses, and days with dollars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    good = [point for point in points if point.chosen]
    sizes, speeds = [point.world_size for point in good], [point.tokens_per_second for point in good]
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.plot(sizes, [speeds[0] * size / sizes[0] for size in sizes], color="#bbbbbb", linestyle="--", label="linear")
    left.plot(sizes, speeds, color="#274b7a", marker="o", label="best layout")
    for point in good:
        share = float(point.chosen.step.mfu) if point.chosen else 0
        left.annotate(f"{share:.0%}", (point.world_size, point.tokens_per_second), (5, -12), textcoords="offset points")
    left.set_title("tokens/s of all GPUs, with the MFU", loc="left", fontsize=10)
    left.legend(frameon=False)
    right.plot(sizes, [point.days(tokens) for point in good], color="#b03030", marker="o")
    for point in good:
        cost = f"${quantity(point.dollars(tokens, price))}" if price else f"{point.days(tokens):,.0f}"
        right.annotate(cost, (point.world_size, point.days(tokens)), (5, 5), textcoords="offset points")
    right.set_title(f"days for {quantity(tokens)} tokens, failures with them", loc="left", fontsize=10)
    days = [point.days(tokens) for point in good]
    for axes, marks in ((left, speeds), (right, days)):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
        axes.set_yticks(marks, [quantity(mark) for mark in marks], fontsize=8)
        axes.minorticks_off()
        axes.margins(x=0.12, y=0.12)
        axes.set_xlabel("GPUs")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(image)

"""Timelines as numbers, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megaxf.engine.timeline import Pass, Timeline

COLOURS = {False: ("#3b6fb6", "#8fb8e8"), True: ("#2e8b57", "#98d4ae")}
"""Of forward (False) and backward passes, through a stage's first part and through its second."""
IDLE = "#ececec"


def values(timeline: Timeline) -> dict[str, Any]:
    """The numbers of a timeline, for JSON."""
    return {
        "schedule": timeline.schedule,
        "stages": timeline.stages,
        "micro_batches": timeline.micro_batches,
        "length": timeline.length,
        "bubble": timeline.bubble,
        "one_part_bubble": timeline.one_part_bubble,
        "peak_in_flight": timeline.peak_in_flight,
    }


def page(timelines: Sequence[Timeline]) -> str:
    """A line a schedule."""
    first = timelines[0]
    lines = [
        f"{first.stages} stages, {first.micro_batches} micro-batches; with one part a stage the bubble is at least "
        f"(p - 1) / (m + p - 1) = {first.one_part_bubble:.1%}",
        "",
        f"{'schedule':<12} {'time':>8} {'bubble':>8}   micro-batches in flight, by stage",
    ]
    for timeline in timelines:
        held = " ".join(f"{peak:g}" for peak in timeline.peak_in_flight)
        lines.append(f"{timeline.schedule:<12} {timeline.length:>8g} {timeline.bubble:>8.1%}   {held}")
    return "\n".join(lines)


def draw(timelines: Sequence[Timeline], image: Path) -> None:
    """One panel a schedule on one axis of time: a row a stage, the number of the micro-batch in each pass."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    longest = max(timeline.length for timeline in timelines)
    shortest = min(done.end - done.start for timeline in timelines for done in timeline.passes)
    rows = timelines[0].stages
    width = min(max(0.2 * longest / shortest, 9.0), 36.0)
    figure = Figure(figsize=(width, len(timelines) * (0.36 * rows + 0.9) + 0.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(timelines), sharex=True, squeeze=False)[:, 0]
    for panel, timeline in zip(panels, timelines, strict=True):
        _draw_panel(panel, timeline, points=0.9 * 72 * width / longest)
    panels[0].set_xlim(0, longest)
    panels[-1].set_xlabel("time")
    _draw_legend(figure, timelines)
    figure.savefig(image)


def _draw_panel(panel: Any, timeline: Timeline, points: float) -> None:
    """points: length of a unit of time in the picture."""
    panel.barh(range(timeline.stages), timeline.length, height=0.86, color=IDLE, linewidth=0)
    for done in timeline.passes:
        _draw_pass(panel, done, done.part >= timeline.stages, points)
    panel.set_yticks(range(timeline.stages), [f"stage {stage}" for stage in range(timeline.stages)])
    panel.set_ylim(timeline.stages - 0.5, -0.5)
    panel.tick_params(axis="y", length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.set_title(
        f"{timeline.schedule}: {timeline.bubble:.1%} idle, up to {max(timeline.peak_in_flight):g} of "
        f"{timeline.micro_batches} micro-batches in flight on a stage",
        loc="left",
        fontsize=10,
    )


def _draw_pass(panel: Any, done: Pass, second: bool, points: float) -> None:
    length = done.end - done.start
    colour = COLOURS[done.backward][second]
    panel.barh(done.stage, length, left=done.start, height=0.86, color=colour, edgecolor="white", linewidth=0.6)
    text = str(done.micro_batch)
    size = min(8.0, 1.2 * points * length / len(text))
    if size >= 4:
        place, ink = (done.start + length / 2, done.stage), "black" if second else "white"
        panel.annotate(text, place, ha="center", va="center", color=ink, fontsize=size)


def _draw_legend(figure: Any, timelines: Sequence[Timeline]) -> None:
    from matplotlib.patches import Patch

    several = any(done.part >= timeline.stages for timeline in timelines for done in timeline.passes)
    names = ("first part", "second part") if several else ("",)
    patches = [
        Patch(color=COLOURS[backward][place], label=f"{word}{', ' if name else ''}{name}")
        for backward, word in ((False, "forward"), (True, "backward"))
        for place, name in enumerate(names)
    ]
    patches.append(Patch(color=IDLE, label="idle"))
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)

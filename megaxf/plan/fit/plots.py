"""Pictures of a fit: the iso-FLOP parabolas, the law against the runs, and the frontier with its band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from megaxf.plan.fit import envelope
from megaxf.plan.fit.report import Report
from megaxf.plan.laws.spread import LEVEL
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT

INK, ACCENT, SECOND, WARN, PALE = "#222222", "#1f5fa8", "#c8741a", "#c0272d", "#b8bec6"


def draw(report: Report, folder: Path) -> list[Path]:
    """Write the pictures that the report has material for; gives their paths."""
    paths = [_fit(report, folder / "fit.png"), _frontier(report, folder / "frontier.png")]
    return [*paths, _parabolas(report, folder / "isoflop.png")] if report.budgets else paths


def _figure(width: float, height: float, panels: int) -> tuple[Any, Any]:
    """A figure of its own and its axes: no window, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _counts(axis: Any) -> None:
    """Ticks as 30M, 1B, 2T."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    formatter = EngFormatter(sep="")
    formatter.ENG_PREFIXES = {**formatter.ENG_PREFIXES, 9: "B"}
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
    axis.set_major_formatter(formatter)
    axis.set_minor_formatter(NullFormatter())


def _parabolas(report: Report, path: Path) -> Path:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    figure, (panel,) = _figure(8, 5, 1)
    flops = [budget.flops for budget in report.budgets]
    norm = LogNorm(min(flops) / 1.2, max(flops) * 1.2)
    colours = colormaps["viridis"].resampled(256)
    for budget in report.budgets:
        colour, sizes = colours(0.92 * norm(budget.flops)), budget.points.parameters
        panel.plot(sizes, budget.points.loss, "o", color=colour, markersize=4, alpha=0.85)
        line = np.geomspace(sizes.min(), sizes.max(), 200)
        style = "-" if budget.optimum else ":"
        panel.plot(line, _on_parabola(budget, line), style, color=colour, linewidth=1.4)
        if budget.optimum:
            panel.plot(budget.optimum, _on_parabola(budget, budget.optimum), "D", color=INK, markersize=6, zorder=4)
    panel.plot([], [], "D", color=INK, label="minimum")
    if any(budget.optimum is None for budget in report.budgets):
        panel.plot([], [], ":", color=INK, label="no minimum within the sizes")
    panel.set_xscale("log")
    _counts(panel.xaxis)
    panel.set_xlabel(f"parameters ({report.counts})")
    panel.set_ylabel("loss (nats per token)")
    law = report.isoflop.law
    panel.set_title("Iso-FLOP parabolas" + (f":  N* ~ C$^{{{law.exponent:.3f}}}$" if law else ""), loc="left")
    panel.legend(frameon=False)
    figure.colorbar(ScalarMappable(norm, colours), ax=panel, label="training FLOPs", pad=0.01)
    figure.savefig(path)
    return path


def _on_parabola(budget: Any, sizes: Any) -> Any:
    return np.polyval(budget.parabola[::-1], np.log(sizes / budget.middle))


def _fit(report: Report, path: Path) -> Path:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    figure, (against, off) = _figure(11, 4.8, 2)
    points, form = report.points, report.surface.form
    predicted = form.loss(points.parameters, points.tokens)
    far = np.zeros(len(predicted), bool)
    far[report.outliers] = True
    ends = [min(predicted.min(), points.loss.min()) / 1.01, max(predicted.max(), points.loss.max()) * 1.01]
    against.plot(ends, ends, color=INK, linewidth=1, zorder=1)
    for panel, across, up in ((against, predicted, points.loss), (off, points.flops, 100 * report.surface.residuals)):
        panel.plot(across[~far], up[~far], "o", color=ACCENT, markersize=4, alpha=0.6)
        panel.plot(across[far], up[far], "o", color=WARN, markersize=6, label=f"outliers ({far.sum()})")
    against.set_xscale("log")
    against.set_yscale("log")
    for axis in (against.xaxis, against.yaxis):
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    against.set_xlabel("loss by the law")
    against.set_ylabel("loss of the run")
    against.set_title("L = E + A / N$^α$ + B / D$^β$", loc="left")
    off.axhline(0, color=INK, linewidth=1, zorder=1)
    off.set_xscale("log")
    off.set_xlabel("training FLOPs")
    off.set_ylabel("off the law (% of the loss)")
    spread = 100 * float(np.median(np.abs(report.surface.residuals)))
    off.set_title(f"Half of the runs lie within {spread:.2g} %", loc="left")
    if far.any():
        against.legend(frameon=False)
    figure.savefig(path)
    return path


def _frontier(report: Report, path: Path) -> Path:
    figure, (size, ratio) = _figure(12, 5, 2)
    points, form, sample = report.points, report.surface.form, report.sample.sample()
    flops = np.geomspace(points.flops.min() / 2, max(points.flops.max(), *report.flops) * 2, 120)
    tail = 50 * (1 - LEVEL)
    sizes = sample.parameters(flops[:, None])
    low, high = np.percentile(sizes, [tail, 100 - tail], axis=1)
    label = f"approach 3, a = {form.exponent:.3f}"
    band = f"{LEVEL:.0%} of {sizes.shape[1]} bootstraps"
    size.plot(points.flops, points.parameters, "o", color=PALE, markersize=3.5, label="runs", zorder=1)
    ratio.plot(points.flops, points.tokens / points.parameters, "o", color=PALE, markersize=3.5, zorder=1)
    for panel, of in ((size, lambda n: n), (ratio, lambda n: flops / FLOPS_PER_WEIGHT / n**2)):
        panel.fill_between(flops, of(low), of(high), color=ACCENT, alpha=0.2, linewidth=0, label=band)
        panel.plot(flops, of(form.parameters(flops)), color=ACCENT, linewidth=2, label=label)
        for approach, colour, style, name in (
            (report.isoflop, SECOND, "--", "approach 2"),
            (report.frontier, "#3a8f4d", "-.", "approach 1"),
        ):
            if approach.law:
                text = f"{name}, a = {approach.law.exponent:.3f}"
                panel.plot(flops, of(approach.law.parameters(flops)), style, color=colour, linewidth=1.6, label=text)
        panel.axvline(points.flops.max(), color=INK, linewidth=0.8, linestyle=":")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("training FLOPs (dotted: the largest run)")
        _counts(panel.yaxis)
    _marks(report, size)
    size.set_ylabel(f"optimal parameters ({report.counts})")
    size.set_title("Compute-optimal size", loc="left")
    ratio.set_ylabel("tokens per parameter at the optimum")
    ratio.set_title("Data for each parameter", loc="left")
    size.legend(frameon=False, loc="upper left")
    figure.savefig(path)
    return path


def _marks(report: Report, panel: Any) -> None:
    """The minima of approach 2 and the winners of approach 1."""
    minima = [(budget.flops, budget.optimum) for budget in report.budgets if budget.optimum]
    if minima:
        panel.plot(*zip(*minima, strict=True), "D", color=SECOND, markersize=5, label="iso-FLOP minima")
    if report.envelope:
        flops, sizes = envelope.winners(report.envelope, np.ones(len(report.envelope.sizes), bool))
        panel.plot(flops, sizes, ".", color="#3a8f4d", markersize=3, label="envelope")

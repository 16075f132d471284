"""loss.png: training and validation loss over steps and tokens, drawn from metrics.jsonl."""

from __future__ import annotations

from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

from data_pipeline.format.manifest import write_whole
from megaxf.train.metrics import GUARD, read_records

Curve = tuple[list[float], list[float]]


def plot_loss(metrics: Path, image: Path, title: str) -> bool:
    """Draw the curves; gives whether there was anything to draw. One figure of its own, no window, no global state.

    Raises OSError where the image cannot be written; one that is there already stays as it is then.
    """
    train, evaluations, tokens_per_step = curves(metrics)
    if not train[0]:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    many = len(train[0]) > 100
    axes.plot(*train, color="tab:blue", alpha=0.3 if many else 0.9, linewidth=1, label=None if many else "train")
    if many:
        axes.plot(train[0], smooth(train[1], len(train[0]) // 50), color="tab:blue", label="train (smoothed)")
    for index, (source, curve) in enumerate(sorted(evaluations.items())):
        axes.plot(*curve, color=f"C{index + 1}", marker="o", markersize=4, label=f"validation: {source}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.legend()
    if tokens_per_step:
        scale = (lambda steps: steps * tokens_per_step, lambda tokens: tokens / tokens_per_step)
        top = axes.secondary_xaxis("top", functions=scale)
        top.xaxis.set_major_formatter(EngFormatter(sep=""))
        top.set_xlabel("tokens")
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    write_whole(image, drawn.getvalue())
    return True


def curves(metrics: Path) -> tuple[Curve, dict[str, Curve], float]:
    """(training loss by step, validation loss by step of each source, tokens of a step on average)."""
    train: Curve = ([], [])
    evaluations: dict[str, Curve] = defaultdict(lambda: ([], []))
    last: dict[str, Any] = {"tokens": 0, "step": 1}
    for record in read_records(metrics):
        if record["kind"] == GUARD or record["loss"] is None:
            continue
        curve = train if record["kind"] == "train" else evaluations[record["source"]]
        curve[0].append(record["step"])
        curve[1].append(record["loss"])
        last = record
    return train, dict(evaluations), last["tokens"] / max(last["step"], 1)


def smooth(values: list[float], width: int) -> list[float]:
    """The mean over the last `width` values at each place."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(sums[end] - sums[max(end - width, 0)]) / min(end, width) for end in range(1, len(sums))]

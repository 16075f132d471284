"""A predicted step as numbers, as a page of text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megaxf.plan.conventions import SECONDS_PER_DAY
from megaxf.plan.laws.page import table
from megaxf.plan.quantities import quantity
from megaxf.plan.throughput.hardware import PRICED, Hardware
from megaxf.plan.throughput.step import ITEMS, Step

REMEDIES = {
    "matrix products": "this is the work itself: more or faster GPUs",
    "attention": "context parallelism shares it; shorter sequences, or a sliding window, make less of it",
    "norms and activations": "train.compile = true fuses them; sequence parallelism shares them",
    "recomputation": "train.recompute = selective or none, where memory allows",
    "output matrix and loss": "tensor parallelism cuts the vocabulary",
    "tensor parallelism": "a smaller parallel.tensor_parallel_size, within one node",
    "context parallelism": "a smaller parallel.context_parallel_size, within one node",
    "weights over data ranks": "more tokens in a micro-batch, or engine.zero_stage = 1 where memory allows",
    "pipeline messages": "1f1b, fewer stages, or sequence parallelism, which sends shares",
    "pipeline bubble": "more micro-batches (a larger batch or smaller ones), fewer stages, or interleaved",
    "gradients over data ranks": "a larger train.global_batch_size for each rank, or a faster network",
    "optimizer": "engine.zero_stage = 1 shares it over data ranks",
}
"""What makes an item smaller."""

KINDS = {
    "computation": ("matrix products", "attention", "norms and activations", "recomputation", "output matrix and loss"),
    "messages": (
        "tensor parallelism",
        "context parallelism",
        "weights over data ranks",
        "pipeline messages",
        "gradients over data ranks",
    ),
    "waiting": ("pipeline bubble",),
    "update": ("optimizer",),
}
"""Items by kind."""

NOT_COUNTED = (
    "reading data, checkpoints, evaluation: they run beside the steps or between them",
    "ranks that are slower than others, and failures",
    "offloading, dropout, document masks",
)

COLOURS = {
    "matrix products": "#274b7a", "attention": "#3b6fb6", "norms and activations": "#8fb8e8",
    "recomputation": "#c9d9ee", "output matrix and loss": "#5d8a66", "tensor parallelism": "#e0a458",
    "context parallelism": "#c77f3c", "weights over data ranks": "#a65b2e", "pipeline messages": "#d6b48a",
    "pipeline bubble": "#d9d9d9", "gradients over data ranks": "#b03030", "optimizer": "#7d6b91",
}  # fmt: skip


def values(step: Step, steps: int | None = None, price: float | None = None) -> dict[str, Any]:
    """The figures of one step for JSON. steps: of the whole run; price: dollars for an hour of a GPU."""
    seconds, size = float(step.seconds), int(step.layout.world_size)
    found: dict[str, Any] = {
        "hardware": step.hardware.name,
        "world_size": size,
        "seconds": seconds,
        "items": {name: float(value) for name, value in step.items.items()},
        "tokens_per_second_per_gpu": float(step.tokens_per_second_per_gpu),
        "model_tflops_per_gpu": float(step.model_flops) / 1e12,
        "mfu": float(step.mfu),
        "convention_mfu": float(step.convention_mfu),
        "limit": limit(step),
    }
    if steps is not None:
        hours = steps * seconds / 3600
        found |= {"steps": steps, "days": steps * seconds / SECONDS_PER_DAY, "gpu_hours": hours * size}
        found["dollars"] = None if price is None else hours * size * price
    return found


def limit(step: Step) -> str:
    """The item beside the products themselves that takes the most; the products where no other reaches a twentieth."""
    others = {name: float(value) for name, value in step.items.items() if name != "matrix products"}
    largest = max(others, key=lambda name: others[name])
    return largest if others[largest] > 0.05 * float(step.seconds) else "matrix products"


def page(step: Step, steps: int | None = None, price: float | None = None) -> str:
    """All figures, with what the largest item is and what makes it smaller."""
    found = values(step, steps, price)
    parts = [_head(step, found), _items(found), _end(found), _remarks(step.hardware)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _head(step: Step, found: dict[str, Any]) -> Iterator[str]:
    tokens, tflops = step.layout.global_batch_size * step.layout.sequence_length, found["model_tflops_per_gpu"]
    yield f"A step of {quantity(tokens)} tokens on {found['world_size']:,} ranks of {step.hardware.name}"
    yield from table(
        [
            ["seconds", f"{found['seconds']:.4g}"],
            ["tokens/s of a GPU", f"{found['tokens_per_second_per_gpu']:,.0f}"],
            ["tokens/s of all", quantity(found["tokens_per_second_per_gpu"] * found["world_size"])],
            ["model TFLOP/s of a GPU", f"{tflops:.4g}" if tflops < 1 else f"{tflops:,.1f}"],
            ["MFU, causal attention", f"{found['mfu']:.1%}"],
            ["MFU, by 6N + 12LHQS", f"{found['convention_mfu']:.1%}"],
        ]
    )


def _items(found: dict[str, Any]) -> Iterator[str]:
    yield "Where they go, on the slowest pipeline stage"
    rows = []
    for name, seconds in found["items"].items():
        if seconds > 0:
            share = seconds / found["seconds"]
            rows.append([name, f"{seconds:.4f}", f"{share:.1%}", "#" * round(40 * share), ITEMS[name]])
    yield from table(rows, ["", "seconds", "share", "", ""], left=(0, 3, 4))


def _end(found: dict[str, Any]) -> Iterator[str]:
    shares = {name: seconds / found["seconds"] for name, seconds in found["items"].items()}
    kinds = (f"{kind} {sum(shares[name] for name in names):.0%}" for kind, names in KINDS.items())
    yield f"In all: {', '.join(kinds)}"
    worst = found["limit"]
    yield f"What limits it: {worst}, {shares[worst]:.0%} of the step; what helps: {REMEDIES[worst]}"
    if "days" in found:
        cost = "" if found["dollars"] is None else f", {found['dollars']:,.0f} dollars"
        yield f"All {found['steps']:,} steps: {found['days']:,.2f} days, {found['gpu_hours']:,.0f} GPU-hours{cost}"


def _remarks(hardware: Hardware) -> Iterator[str]:
    yield "Not counted:"
    yield from (f"  {text}" for text in NOT_COUNTED)
    if not hardware.measured:
        yield "Efficiencies are those of published runs of other software; megaxf itself was not measured on GPUs."
        yield f"  megaxf plan calibrate measures your machine. The default price is of {PRICED}."


def listing(known: dict[str, Hardware]) -> str:
    """The hardware table."""
    head = ["", "bf16 TFLOP/s", "memory GB", "TB/s", "GPUs a node", "link GB/s", "network GB/s", "$ an hour"]
    rows = []
    for name, entry in known.items():
        rows.append(
            [
                name,
                _figure(entry.peaks.get("bf16"), 1e12),
                _figure(entry.memory, 1e9),
                _figure(entry.memory_bandwidth, 1e12),
                str(entry.node_size),
                _figure(entry.link_bandwidth, 1e9),
                _figure(entry.network_bandwidth, 1e9),
                "-" if entry.dollars_per_hour is None else f"{entry.dollars_per_hour:.2f}",
            ]
        )
    note = (
        f"  link and network: one way, for each GPU; prices are defaults of {PRICED}; all can be set: --hardware FILE"
    )
    return "\n".join([*table(rows, head), "", note])


def measured(machine: Hardware) -> str:
    """What `megaxf plan calibrate` found."""
    constants = machine.measured
    (precision, peak), *_ = machine.peaks.items()
    rows = [
        [f"matrix products, {precision}", f"{peak * constants['matrices'] / 1e12:.4g} TFLOP/s"],
        ["attention", f"{peak * constants['attention'] / 1e12:.4g} TFLOP/s"],
        ["memory", f"{machine.memory_bandwidth * constants['memory'] / 1e9:.4g} GB/s"],
        ["a product takes twice its time at", f"{constants['edge']:.3g} rows, columns or terms"],
    ]
    if machine.node_size > 1 or machine.network_bandwidth:
        rows.append(["messages within the host", f"{machine.link_bandwidth / 1e9:.4g} GB/s"])
        rows.append(["an empty message", f"{constants['hop_seconds'] * 1e6:.4g} us"])
    if machine.network_bandwidth:
        rows.append(["messages of a rank to other hosts", f"{machine.network_bandwidth / 1e9:.4g} GB/s"])
    return "\n".join([f"{machine.name}: speeds that a training step reaches", *table(rows)])


def _figure(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{value / unit:.4g}"


def draw(step: Step, image: Path) -> None:
    """The items of a step, one after the other on an axis of time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    items = {name: float(value) for name, value in step.items.items() if value > 0}
    figure = Figure(figsize=(10, 1.4 + 0.33 * len(items)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes, start, total = figure.add_subplot(), 0.0, float(step.seconds)
    for place, (name, seconds) in enumerate(items.items()):
        axes.barh(place, seconds, left=start, color=COLOURS[name], height=0.8)
        axes.annotate(f" {seconds / total:.1%}", (start + seconds, place), va="center", fontsize=9)
        start += seconds
    axes.set_yticks(range(len(items)), list(items))
    axes.set_ylim(len(items) - 0.5, -0.5)
    axes.set_xlim(0, 1.09 * total)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("seconds of a step, on the slowest stage")
    rate = f"{float(step.tokens_per_second_per_gpu):,.0f} tokens/s a GPU, MFU {float(step.mfu):.1%}"
    axes.set_title(f"{int(step.layout.world_size):,} x {step.hardware.name}: {rate}", loc="left", fontsize=10)
    figure.savefig(image)

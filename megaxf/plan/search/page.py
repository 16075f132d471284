"""The best layouts as numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megaxf.plan.laws.page import table
from megaxf.plan.memory.advice import fullest
from megaxf.plan.memory.rows import GROUPS
from megaxf.plan.quantities import quantity
from megaxf.plan.search.find import GIB, Choice, Found, describe
from megaxf.plan.throughput.page import REMEDIES, limit

SHOWN = 0.005
"""Share of a step from which on an item is worth a line."""


def values(found: Found, beside: Choice | None = None, place: int | None = None) -> dict[str, Any]:
    """All of it for JSON. beside: a layout of one's own, with its place among all."""
    task = found.task
    best = [_values(chosen, task.world_size) for chosen in found.best]
    own = None if beside is None else _values(beside, task.world_size) | {"rank": place}
    counts = {name: getattr(found, name) for name in ("candidates", "predicted", "counted", "seconds")}
    return {"hardware": task.hardware.name, "world_size": task.world_size, **counts, "best": best, "beside": own}


def _values(chosen: Choice, world_size: int) -> dict[str, Any]:
    step, groups = chosen.step, _groups(chosen)
    return chosen.candidate._asdict() | {
        "data_parallel_size": chosen.candidate.data_parallel_size(world_size),
        "seconds": float(step.seconds),
        "tokens_per_second_per_gpu": float(step.tokens_per_second_per_gpu),
        "mfu": float(step.mfu),
        "items": {name: float(seconds) for name, seconds in step.items.items()},
        "bytes": chosen.need,
        "fullest_stage": fullest(chosen.ledgers).stage,
        "groups": {group: size for group, size in groups.items() if size},
    }


def _groups(chosen: Choice) -> dict[str, int]:
    """Bytes by kind on the fullest rank, when it holds the most."""
    most = fullest(chosen.ledgers)
    return {group: most.at(most.moment, group) for group in GROUPS}


def page(found: Found, beside: Choice | None = None, place: int | None = None) -> str:
    """The table, the first layout's time and memory, and how another one compares with it."""
    parts = [_head(found), _table(found), _memory(found.best[0], found.task.memory), _time(found.best[0])]
    if beside is not None:
        parts.append(_beside(found, beside, place))
    return "\n\n".join("\n".join(lines) for lines in parts)


def _head(found: Found) -> Iterator[str]:
    task = found.task
    tokens = quantity(task.global_batch_size * task.sequence_length)
    yield (
        f"Layouts on {task.world_size:,} x {task.hardware.name}, {task.memory / GIB:.1f} GiB each, of a step of "
        f"{task.global_batch_size:,} sequences of {task.sequence_length:,} = {tokens} tokens"
    )
    yield (
        f"  {found.candidates:,} are allowed, {found.predicted:,} may fit by a lower bound, {found.counted} were "
        f"counted to find the fastest {len(found.best)} that do; {found.seconds:.1f} s of one core"
    )


def _table(found: Found) -> Iterator[str]:
    head = ["", "TP", "CP", "PP", "schedule", "DP", "ZeRO", "micro", "recompute"]
    head += ["s a step", "tokens/s a GPU", "MFU", "bubble", "GiB", "states", "activations"]
    rows = []
    for place, chosen in enumerate(found.best, 1):
        candidate, step, groups = chosen.candidate, chosen.step, _groups(chosen)
        rows.append(
            [
                f"{place}.",
                f"{candidate.tensor_parallel_size}{' SP' if candidate.sequence_parallel else ''}",
                str(candidate.context_parallel_size),
                str(candidate.pipeline_parallel_size),
                candidate.pipeline_schedule if candidate.pipeline_parallel_size > 1 else "-",
                str(candidate.data_parallel_size(found.task.world_size)),
                str(candidate.zero_stage),
                str(candidate.micro_batch_size),
                candidate.recompute,
                f"{float(step.seconds):.4g}",
                f"{float(step.tokens_per_second_per_gpu):,.0f}",
                f"{float(step.mfu):.1%}",
                f"{float(step.items['pipeline bubble'] / step.seconds):.1%}",
                f"{chosen.need / GIB:.1f}",
                f"{sum(groups[name] for name in ('weights', 'gradients', 'optimizer')) / GIB:.1f}",
                f"{groups['activations'] / GIB:.1f}",
            ]
        )
    yield from table(rows, head, left=(0, 4, 8))


def _memory(chosen: Choice, limit_bytes: float) -> Iterator[str]:
    most = fullest(chosen.ledgers)
    yield f"The first one's memory, on stage {most.stage}: {chosen.need / GIB:.1f} of {limit_bytes / GIB:.1f} GiB"
    rows = [[group, f"{size / GIB:.2f}", GROUPS[group]] for group, size in _groups(chosen).items() if size]
    yield from table(rows, ["", "GiB", ""], left=(0, 2))


def _time(chosen: Choice) -> Iterator[str]:
    seconds, worst = float(chosen.step.seconds), limit(chosen.step)
    yield f"Its step of {seconds:.4g} s"
    shares = {name: float(value) / seconds for name, value in chosen.step.items.items()}
    yield from table(
        [[name, f"{share:.1%}", "#" * round(40 * share)] for name, share in shares.items() if share > SHOWN],
        left=(0, 2),
    )
    yield f"What limits it: {worst}, {shares[worst]:.0%} of the step; what helps: {REMEDIES[worst]}"


def _beside(found: Found, own: Choice, place: int | None) -> Iterator[str]:
    """What the first one does better than a layout of one's own."""
    first, task = found.best[0], found.task
    seconds, best = float(own.step.seconds), float(first.step.seconds)
    yield f"Beside it: {describe(own.candidate, task.world_size)}"
    room = "fits" if own.need <= task.memory else f"does not fit into {task.memory / GIB:.1f}"
    yield f"  number {place:,} of all, {seconds:.4g} s ({seconds / best - 1:+.1%}), {own.need / GIB:.1f} GiB: {room}"
    yield "  Seconds against the first one:"
    for name, value in own.step.items.items():
        other = float(first.step.items[name])
        if abs(float(value) - other) > SHOWN * best:
            yield f"    {name:<28} {float(value):9.4f} {float(value) - other:+9.4f}"

"""The plan as numbers and as one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from megaxf.plan.budget.helps import helps
from megaxf.plan.budget.plan import Plan
from megaxf.plan.laws.page import figure, table
from megaxf.plan.laws.spread import LEVEL
from megaxf.plan.memory.advice import fullest
from megaxf.plan.memory.rows import GROUPS
from megaxf.plan.parameters import count
from megaxf.plan.quantities import quantity
from megaxf.plan.search.find import GIB, describe
from megaxf.plan.search.page import values as layout_values
from megaxf.plan.search.runfile import steps_for
from megaxf.plan.shape.page import settings
from megaxf.plan.throughput.hardware import PRICED
from megaxf.plan.throughput.page import REMEDIES, limit

MANY_EPOCHS = 4
"""Beyond so many, repeated data is worth clearly less than new data (arXiv 2305.16264)."""

SHORT = 2.0
"""Days below which hours are told."""


def values(found: Plan) -> dict[str, Any]:
    """All of it for JSON."""
    request, means, training = found.request, found.means, found.training
    unique = request.unique_tokens
    return {
        "request": {name: value for name, value in request._asdict().items() if value is not None},
        "limit": None if found.limit is None else found.limit._asdict(),
        "law": {"name": means.law.name, "counts": means.law.counts, "source": means.law.source},
        "model": settings(found.sizes, request.sequence_length),
        "parameters": count(found.sizes)._asdict(),
        "training": training._asdict()
        | {"flops": training.flops, "tokens_per_parameter": training.tokens_per_parameter},
        "loss_interval": None if found.loss_interval is None else list(found.loss_interval),
        "epochs": None if unique is None else training.tokens / unique,
        "steps": steps_for(found.found.task, training.tokens),
        "batch_sequences": found.found.task.global_batch_size,
        "layouts": layout_values(found.found),
        "helps": [each._asdict() for each in helps(found)],
        "save_every_seconds": means.failures.interval(means.world_size),
        "lost_share": 1 - 1 / means.failures.factor(means.world_size),
        "days": found.days,
        "gpu_hours": found.gpu_hours,
        "price": means.price,
        "dollars": found.dollars,
    }


def page(found: Plan) -> str:
    """One page."""
    parts = [_question(found), _training(found), _machine(found), _cost(found), _limits(found)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def duration(days: float) -> str:
    """In days, or in hours where these are few."""
    return f"{days:,.1f} days" if days >= SHORT else f"{24 * days:.2f} hours"


def _question(found: Plan) -> Iterator[str]:
    means = found.means
    price = "" if means.price is None else f" at ${means.price:.2f} an hour"
    yield f"On {means.world_size:,} x {means.hardware.name}{price}"
    if found.limit:
        days = found.limit.gpu_hours / means.world_size / 24
        yield f"  {found.limit.option}: {quantity(found.limit.gpu_hours)} GPU-hours, {duration(days)} of all GPUs"


def _training(found: Plan) -> Iterator[str]:
    training, sizes, request = found.training, found.sizes, found.request
    law = found.means.law
    constants = ", ".join(f"{name} = {value!r}" for name, value in asdict(found.means.surface).items())
    yield f"What to train, by the law {law.name} ({law.source})"
    yield f"  L = E + A / N^alpha + B / D^beta, {constants}"
    rows = [
        ["parameters", f"{count(sizes).total:,}"],
        [
            "shape",
            f"{sizes.num_hidden_layers} layers of {sizes.hidden_size:,}, {sizes.num_attention_heads} heads and "
            f"{sizes.num_key_value_heads} key/value heads of {sizes.head_dim}, MLP {sizes.intermediate_size:,}, "
            f"vocabulary {sizes.vocab_size:,}{' tied' if sizes.tie_word_embeddings else ''}",
        ],
        ["tokens", f"{quantity(training.tokens)}, {training.tokens_per_parameter:,.3g} for each parameter"],
        ["training FLOPs", f"{training.flops:.6g} = 6 N D, N counting {found.means.law.counts} parameters"],
        ["expected loss", _loss(found)],
    ]
    if request.unique_tokens is not None:
        rows.append(["epochs", f"{training.tokens / request.unique_tokens:.2f} of {quantity(request.unique_tokens)}"])
    if request.inference_tokens is not None:
        rows.append(["served", f"{quantity(request.inference_tokens)} tokens: smaller than is cheapest to train"])
    yield from table(rows, left=(0, 1))


def _loss(found: Plan) -> str:
    text = f"{figure('loss', found.training.loss)} nats a token"
    if found.loss_interval is None:
        return text
    low, _, high = found.loss_interval
    return f"{text}, {low:.3f} to {high:.3f} ({LEVEL:.0%} interval of the law; your data and tokenizer shift it)"


def _machine(found: Plan) -> Iterator[str]:
    first, task = found.first, found.found.task
    step, most = first.step, fullest(first.ledgers)
    groups = {group: most.at(most.moment, group) / GIB for group in GROUPS}
    sizes = ", ".join(f"{group} {size:.1f}" for group, size in groups.items() if size > 0.05)
    tokens = quantity(task.global_batch_size * task.sequence_length)
    yield "How"
    rows = [
        ["layout", describe(first.candidate, task.world_size)],
        ["", f"the fastest that fits of {found.found.candidates:,} that are allowed"],
        ["batch", f"{task.global_batch_size:,} sequences of {task.sequence_length:,} = {tokens} tokens"],
        ["memory", f"{first.need / GIB:.1f} of {task.memory / GIB:.1f} GiB: {sizes}"],
        ["a step", f"{float(step.seconds):.4g} s, {float(step.tokens_per_second_per_gpu):,.0f} tokens/s a GPU"],
        ["MFU", f"{float(step.mfu):.1%} causal, {float(step.convention_mfu):.1%} by 6N + 12LHQS"],
    ]
    yield from table(rows, left=(0, 1))


def _cost(found: Plan) -> Iterator[str]:
    means, failures = found.means, found.means.failures
    lost = 1 - 1 / failures.factor(means.world_size)
    yield "How long, for how much"
    every = failures.interval(means.world_size)
    hours = failures.mean_seconds(means.world_size) / 3600
    rows = [
        ["steps", f"{steps_for(found.found.task, found.training.tokens):,}"],
        ["time", f"{duration(found.days)}, of which {lost:.1%} for saves and failures"],
        ["save every", f"{every / 60:,.0f} minutes, where something fails every {hours:,.1f} hours"],
        ["GPU-hours", quantity(found.gpu_hours)],
    ]
    if found.dollars is not None:
        rows.append(["dollars", f"{found.dollars:,.0f} at ${means.price:.2f} an hour (defaults are of {PRICED})"])
    yield from table(rows, left=(0, 1))


def _limits(found: Plan) -> Iterator[str]:
    """What the plan hangs on, and what would help."""
    step, worst = found.first.step, limit(found.first.step)
    share = float(step.items[worst]) / float(step.seconds)
    yield "What limits it, and what would help"
    if found.limit:
        yield f"  the end: {found.limit.option}, the tightest of what was given"
    yield f"  the step: {worst}, {share:.0%} of it: {REMEDIES[worst]}"
    yield from (f"  {each.change}: {each.saved:.1%} less time; {each.more}" for each in helps(found))
    unique = found.request.unique_tokens
    if unique and found.training.tokens > MANY_EPOCHS * unique:
        yield f"  data: repeated more than {MANY_EPOCHS} times, it teaches little; more unique tokens help most"
    yield "Speeds follow published runs of other software: megaxf itself was not measured on GPUs."

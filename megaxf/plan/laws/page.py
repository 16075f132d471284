"""What a law answers, as a page of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megaxf.plan.laws.table import LAWS
from megaxf.plan.quantities import quantity

_LABELS = {
    "flops": "training FLOPs",
    "parameters": "parameters",
    "tokens": "tokens",
    "tokens_per_parameter": "tokens per parameter",
    "loss": "loss (nats per token)",
}


def page(answer: dict[str, Any]) -> str:
    """The page of `answer.answer`."""
    parts = [
        _law(answer["law"]),
        _training(answer),
        _off_optimum(answer["off_optimum"]),
        _cost(answer),
        _lifetime(answer),
        _repeated(answer),
        _kaplan(answer["kaplan_losses"]),
        _hyperparameters(answer),
        _neighbour(answer["neighbour"]),
        _others(answer["other_laws"]),
    ]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def listed() -> list[dict[str, str]]:
    """The laws of the table, for JSON."""
    return [{name: getattr(law, name) for name in ("name", "source", "counts", "published")} for law in LAWS.values()]


def listing() -> str:
    """The laws of the table."""
    lines = [line for law in LAWS.values() for line in (law.name, f"  {law.source}", f"  interval: {law.published}")]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), left: Sequence[int] = (0,)) -> Iterator[str]:
    """Lines of aligned columns: words to the left, figures to the right."""
    everything = [*([head] if head else []), *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*everything, strict=True)]
    for row in everything:
        cells = (f"{cell:{'<' if n in left else '>'}{widths[n]}}" for n, cell in enumerate(row))
        yield ("  " + "   ".join(cells)).rstrip()


def figure(name: str, value: float | None) -> str:
    """A value as its kind is best read."""
    if value is None:
        return "-"
    if name == "loss":
        return f"{value:.4f}"
    if name == "tokens_per_parameter":
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:.4g}" if name == "flops" or value >= 1e15 else quantity(value)


def _law(law: dict[str, Any]) -> Iterator[str]:
    constants = ", ".join(f"{name} = {value!r}" for name, value in law["constants"].items())
    yield f"The law {law['name']}: {law['form']}"
    yield f"  {constants}"
    yield f"  N* ~ C^{law['exponent']:.6g}; N counts {law['counts']} parameters; C = 6 N D"
    yield f"  {law['source']}"
    yield f"  its interval: {law['published']}"


def _training(answer: dict[str, Any]) -> Iterator[str]:
    training, asked = answer["training"], answer["question"]
    intervals = training["interval"] or {}
    given = [name for name in _LABELS if name in asked]
    asked_with = " and ".join(f"{figure(name, asked[name])} {_LABELS[name]}" for name in given)
    yield f"{'Optimum' if len(given) == 1 else 'The training'} of {asked_with}"
    head = ["", "", f"{intervals['level']:.0%} interval"] if intervals else []
    rows = []
    for name, label in _LABELS.items():
        ends = intervals.get(name)
        span = f"{figure(name, ends[0])} to {figure(name, ends[2]) if ends[2] else 'any'}" if ends else ""
        rows.append([label, figure(name, training[name]), *([span] if intervals else [])])
    yield from table(rows, head)


def _off_optimum(rows: list[dict[str, Any]] | None) -> Iterator[str]:
    if not rows:
        return
    yield "Another size costs"
    lines = []
    for row in rows:
        data = ["out of reach", "-"]
        if row["data_factor"] is not None:
            data = [f"x {row['data_factor']:.3g}", f"{row['extra_flops']:+.1%}"]
        lines.append([f"size x {row['size_factor']:g}", *data, f"{row['extra_loss']:+.4f}"])
    yield from table(lines, ["", "data for equal loss", "compute", "loss at equal compute"])


def _cost(answer: dict[str, Any]) -> Iterator[str]:
    cost = answer["cost_of_choice"]
    if cost is None:
        return
    yield "Beside the optima"
    rows = [_row("of equal compute", answer["optimum_of_equal_flops"])]
    if cost["cheapest_of_equal_loss"]:
        rows.append(_row("of equal loss", cost["cheapest_of_equal_loss"]))
    yield from table(rows, ["", "parameters", "tokens", "FLOPs", "loss"])
    if cost["extra_flops"] is not None:
        yield f"  the choice takes {1 + cost['extra_flops']:.4g} times the compute of the cheapest way to its loss"
        yield f"  this size with unlimited data: {cost['loss_with_unlimited_data']:.4f}"


def _lifetime(answer: dict[str, Any]) -> Iterator[str]:
    life = answer["lifetime"]
    if life is None:
        return
    yield f"With {quantity(answer['question']['inference_tokens'])} tokens to be served (2 N FLOPs each)"
    rows = [
        _row("best over its life", life["best"], life["flops_in_all"]),
        _row("cheapest to train", life["training_optimum"], life["flops_of_the_training_optimum"]),
    ]
    yield from table(rows, ["", "parameters", "tokens", "training FLOPs", "loss", "FLOPs in all"])
    yield f"  saves {life['saving']:.2%} of all FLOPs, by the law {answer['law']['name']}; others say less or more"


def _repeated(answer: dict[str, Any]) -> Iterator[str]:
    repeated = answer["repeated"]
    if repeated is None:
        return
    yield f"With {quantity(answer['question']['unique_tokens'])} unique tokens (repeats as in arXiv 2305.16264)"
    rows = [_row("best on this data", repeated["best"]), _row("with unlimited data", repeated["unlimited"])]
    yield from table(rows, ["", "parameters", "tokens", "FLOPs", "loss"])
    epochs = repeated["epochs"]
    if epochs <= 1:
        yield f"  the data is not all needed: {epochs:.2f} epochs"
    else:
        yield f"  {epochs:.2f} epochs, worth {quantity(repeated['worth_in_new_tokens'])} new tokens"


def _kaplan(losses: dict[str, float] | None) -> Iterator[str]:
    if losses:
        yield "Losses by Kaplan's own laws: " + ", ".join(f"{name} {value:.4f}" for name, value in losses.items())


def _hyperparameters(answer: dict[str, Any]) -> Iterator[str]:
    found = answer["hyperparameters"]
    yield "Where to begin the search: laws of other data and tokenizers, all for AdamW, that disagree"
    rows = [
        [row["law"], _rate(row["learning_rate"]), figure("tokens", row["batch_tokens"]), row["source"]]
        for row in found["suggestions"]
    ]
    rate, batch, warmup = found["learning_rate"], found["batch_tokens"], found["warmup_tokens"]
    rows.append(["range", f"{_rate(rate[0])} to {_rate(rate[1])}", _span(batch), ""])
    yield from table(rows, ["", "peak learning rate", "batch, tokens", ""], left=(0, 3))
    yield f"  warm-up {_span(warmup)} tokens (N tokens, arXiv 2406.19146; 2,000 steps, arXiv 2401.02954)"
    yield f"  a batch of {quantity(found['critical_batch_tokens'])} tokens takes a fifth more data (arXiv 2410.21676)"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _span(ends: Iterable[float]) -> str:
    return " to ".join(quantity(end) for end in ends)


def _neighbour(shape: dict[str, Any] | None) -> Iterator[str]:
    if shape:
        layers = shape["num_hidden_layers"]
        yield (
            f"Nearest shape that Hoffmann et al. trained: {quantity(shape['parameters'])}, {layers} layers of "
            f"{shape['hidden_size']:,}, {shape['num_attention_heads']} heads of {shape['head_dim']}, "
            f"MLP {shape['intermediate_size']:,}; FLOPs {shape['flops_over_6nd']:.3f} x 6 N D"
        )


def _others(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    yield "What other laws say"
    lines = [[*_row(row["law"], row), figure("tokens_per_parameter", row["tokens_per_parameter"])] for row in rows]
    lines = [[*line, row["counts"]] for line, row in zip(lines, rows, strict=True)]
    yield from table(lines, ["", "parameters", "tokens", "FLOPs", "loss", "D/N", "N counts"], left=(0, 6))


def _row(label: str, training: dict[str, Any], *more: float) -> list[str]:
    """A training in a table: label, size, data, compute, loss, and more FLOPs."""
    names = ("parameters", "tokens", "flops", "loss")
    return [label, *(figure(name, training[name]) for name in names), *(figure("flops", value) for value in more)]

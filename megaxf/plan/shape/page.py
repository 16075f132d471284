"""Proposed shapes as numbers, as a page and as a model file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from megaxf.plan.laws.page import table
from megaxf.plan.parameters import count
from megaxf.plan.quantities import quantity
from megaxf.plan.shape.propose import Proposal, Sizes, Wish
from megaxf.plan.shape.published import Published, neighbours, usual_aspect

LONG = 8192
"""From this sequence length on, the longer period of rotary embeddings that Llama 3 has (arXiv 2407.21783)."""


def settings(sizes: Sizes, sequence_length: int) -> dict[str, Any]:
    """The shape as a file of configs/models has it."""
    found = {name: value for name, value in asdict(sizes).items() if value not in (False, None)}
    theta = {"rope_theta": 500000.0} if sequence_length >= LONG else {}
    return {"family": "llama", **found, "max_position_embeddings": sequence_length, **theta}


def model_file(found: Proposal, wish: Wish, sequence_length: int) -> str:
    """The text of a model file, its count in the first line."""
    lines = [f"{name}: {_yaml(value)}" for name, value in settings(found.sizes, sequence_length).items()]
    head = (
        f"# {count(found.sizes).total:,} parameters, {found.deviation:+.2%} to the {quantity(wish.parameters)} "
        f"{_counted(wish)}that were asked for (megaxf plan shape)."
    )
    return "\n".join([head, *lines]) + "\n"


def values(proposals: Sequence[Proposal], wish: Wish, sequence_length: int) -> dict[str, Any]:
    """All of it for JSON."""
    return {
        "wish": wish._asdict(),
        "usual_aspect": usual_aspect(wish.parameters),
        "proposals": [
            {
                "model": settings(found.sizes, sequence_length),
                "parameters": count(found.sizes)._asdict(),
                "deviation": found.deviation,
                "score": found.score,
            }
            for found in proposals
        ],
        "neighbours": [model._asdict() for model in neighbours(wish.parameters)],
    }


def page(proposals: Sequence[Proposal], wish: Wish) -> str:
    """Proposals, best first, above their published neighbours."""
    counts = [count(found.sizes) for found in proposals]
    labels = [f"{place}. proposal" for place in range(1, len(proposals) + 1)]
    rows = [
        [label, f"{each.total:,}", f"{found.deviation:+.2%}", *_sizes(found.sizes)]
        for label, each, found in zip(labels, counts, proposals, strict=True)
    ]
    rows += [[model.name, f"{model.parameters:,}", "", *_published(model)] for model in neighbours(wish.parameters)]
    columns = ["layers", "hidden", "h / L", "heads", "kv", "MLP", "MLP / h", "vocabulary"]
    vocab = "as given, a multiple of 64" if wish.vocab_size else "by size: --vocab-size takes that of your tokenizer"
    inner = [["", "not in embeddings", "matrices with the head"]]
    inner += [
        [label, f"{each.non_embedding:,}", f"{each.matmul:,}"] for label, each in zip(labels, counts, strict=True)
    ]
    lines = [
        f"Shapes of {quantity(wish.parameters)} {_counted(wish)}parameters, best first, and published neighbours",
        *table(rows, ["", "parameters", "off", *columns]),
        "",
        *table(inner[1:], inner[0]),
        "",
        f"hidden size over layers: usually {usual_aspect(wish.parameters):.0f} at this size; vocabulary: {vocab}",
        *_degrees(wish),
        f"sources: {', '.join(f'{model.name} {model.source}' for model in neighbours(wish.parameters))}",
    ]
    return "\n".join(lines)


def _degrees(wish: Wish) -> Iterator[str]:
    if wish.tensor_parallel_size > 1:
        yield f"heads and MLP are divisible by {wish.tensor_parallel_size}, over which tensors are cut"
    if wish.pipeline_parallel_size > 1:
        yield f"layers are divisible by {wish.pipeline_parallel_size}, over which the pipeline is cut"


def _sizes(sizes: Sizes) -> list[str]:
    return _row(
        sizes.num_hidden_layers,
        sizes.hidden_size,
        (sizes.num_attention_heads, sizes.head_dim),
        sizes.num_key_value_heads,
        sizes.intermediate_size,
        f"{sizes.vocab_size:,}{' tied' if sizes.tie_word_embeddings else ''}",
    )


def _published(model: Published) -> list[str]:
    row = _row(
        model.num_hidden_layers,
        model.hidden_size,
        (model.num_attention_heads, model.head_dim),
        model.num_key_value_heads,
        model.intermediate_size,
        f"{model.vocab_size:,}{' tied' if model.tied else ''}",
    )
    return [cell + (", plain" if place == 6 and model.mlp_matrices == 2 else "") for place, cell in enumerate(row)]


def _row(layers: int, hidden: int, heads: tuple[int, int], keys: int, width: int, vocab: str) -> list[str]:
    heads_cell = f"{heads[0]} x {heads[1]}"
    ratios = f"{hidden / layers:.0f}", f"{width / hidden:.2f}"
    return [str(layers), f"{hidden:,}", ratios[0], heads_cell, str(keys), f"{width:,}", ratios[1], vocab]


def _counted(wish: Wish) -> str:
    return {"total": "", "non_embedding": "non-embedding ", "matmul": "matrix "}[wish.counts]


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

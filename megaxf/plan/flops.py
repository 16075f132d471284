"""Floating-point operations of training, forward and backward (three times forward), without recomputation.

Two numbers are in use. *Model* FLOPs count the matrix products that the mathematics needs: no embedding look-up, and
of the attention scores only those that the causal mask (and the window) leaves. *Convention* FLOPs are 6N + 12 L H Q S
(PaLM, arXiv 2204.02311, appendix B): all parameters and the full square; most published MFU figures use them.
"""

from __future__ import annotations

from megaxf.plan.parameters import Shape, count, layer_matrices


def per_token(shape: Shape, sequence_length: int) -> float:
    """Model FLOPs of one token of training on sequences of that length, on average over the sequence."""
    return per_sequence(shape, sequence_length) / sequence_length


def per_sequence(shape: Shape, sequence_length: int) -> int:
    """Model FLOPs of training on one sequence: 6 a matrix element and token, 12 a score, layer and query dimension."""
    layers = shape.num_hidden_layers * layer_per_sequence(shape, sequence_length)
    return layers + head_per_sequence(shape, sequence_length)


def layer_per_sequence(shape: Shape, sequence_length: int) -> int:
    """The part of `per_sequence` that one decoder layer has."""
    scores = _per_score(shape) * visible_pairs(sequence_length, shape.sliding_window)
    return 6 * layer_matrices(shape) * sequence_length + scores


def head_per_sequence(shape: Shape, sequence_length: int) -> int:
    """The part of `per_sequence` that the output matrix has; the embedding look-up has none."""
    return 6 * shape.vocab_size * shape.hidden_size * sequence_length


def convention_per_token(shape: Shape, sequence_length: int) -> int:
    """6N + 12 L H Q S, per token."""
    return 6 * count(shape).total + shape.num_hidden_layers * _per_score(shape) * sequence_length


def visible_pairs(sequence_length: int, window: int | None = None) -> int:
    """Pairs of a query and a key that it sees: causal, within the last `window` keys."""
    width = min(window or sequence_length, sequence_length)
    return width * (width + 1) // 2 + (sequence_length - width) * width


def _per_score(shape: Shape) -> int:
    """Of a layer: two products (scores and values), two operations each, three passes; query heads, however few the key
    heads."""
    return 12 * shape.num_attention_heads * shape.head_dim

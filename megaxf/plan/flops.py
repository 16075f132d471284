"""Floating-point operations of training, forward and backward (three times forward).

*Model* FLOPs count the matrix products that the mathematics needs: no embedding look-up, no recomputation, and of the
attention scores only those that the causal mask (and the window) leaves. *Hardware* FLOPs add what is computed again.
Other ways to count stand in megaxf.plan.conventions.
"""

from __future__ import annotations

from megaxf.plan.parameters import Shape, attention_matrices, layer_matrices


def per_token(shape: Shape, sequence_length: int) -> float:
    """Model FLOPs of one token of training on sequences of that length, on average over the sequence."""
    return per_sequence(shape, sequence_length) / sequence_length


def per_sequence(shape: Shape, sequence_length: int) -> int:
    """Model FLOPs of training on one sequence: 6 a matrix element and token, 12 a score, layer and query dimension."""
    layers = shape.num_hidden_layers * layer_per_sequence(shape, sequence_length)
    return layers + head_per_sequence(shape, sequence_length)


def layer_per_sequence(shape: Shape, sequence_length: int) -> int:
    """The part of `per_sequence` that one decoder layer has."""
    return 6 * layer_matrices(shape) * sequence_length + 3 * _core(shape, sequence_length)


def head_per_sequence(shape: Shape, sequence_length: int) -> int:
    """The part of `per_sequence` that the output matrix has; the embedding look-up has none."""
    return 6 * shape.vocab_size * shape.hidden_size * sequence_length


def parts_per_sequence(shape: Shape, sequence_length: int) -> dict[str, int]:
    """What `per_sequence` is the sum of: attention's matrices and its scores, the MLP, the head."""
    layers, projections = shape.num_hidden_layers, attention_matrices(shape)
    mlp = layer_matrices(shape) - projections
    return {
        "attention, matrices": 6 * layers * projections * sequence_length,
        "attention, scores": 3 * layers * _core(shape, sequence_length),
        "MLP": 6 * layers * mlp * sequence_length,
        "head": head_per_sequence(shape, sequence_length),
    }


def hardware_per_sequence(
    shape: Shape,
    sequence_length: int,
    recompute: str = "none",
    every: int = 1,
    *,
    dropout: bool = False,
    fused: bool = True,
) -> int:
    """Model FLOPs of one sequence and those that are spent again.

    recompute: in every so manieth layer, the first among them: "none"; "selective", which makes no matrix product again
    in megaxf; "core", the attention's scores and values (the selective recomputation of arXiv 2205.05198); "full",
    the whole layer but its last product, whose result the backward pass needs for `dropout` only.
    fused: FlashAttention's backward pass makes the scores again (arXiv 2205.14135).
    Raises ValueError for another mode.
    """
    core = _core(shape, sequence_length)
    last = 0 if dropout else shape.hidden_size * shape.intermediate_size
    again = {
        "none": 0,
        "selective": 0,
        "core": core,
        "full": 2 * (layer_matrices(shape) - last) * sequence_length + core,
    }
    if recompute not in again:
        raise ValueError(f"recompute = {recompute!r} is not known; use one of {', '.join(again)}")
    layers = -(-shape.num_hidden_layers // every)
    scores = shape.num_hidden_layers * core // 2 if fused else 0
    return per_sequence(shape, sequence_length) + layers * again[recompute] + scores


def visible_pairs(sequence_length: int, window: int | None = None) -> int:
    """Pairs of a query and a key that it sees: causal, within the last `window` keys."""
    width = min(window or sequence_length, sequence_length)
    return width * (width + 1) // 2 + (sequence_length - width) * width


def _core(shape: Shape, sequence_length: int) -> int:
    """Of one layer's forward pass: two products (scores and values) of two operations for each pair that is seen and
    each dimension of the query heads, however few the key heads."""
    pairs = visible_pairs(sequence_length, shape.sliding_window)
    return 4 * shape.num_attention_heads * shape.head_dim * pairs

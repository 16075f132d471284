"""The weights that one rank holds: those of its layers, cut over the tensor axis.

Heads and the MLP's width are cut evenly; key/value heads that are fewer than the ranks are copied; norms are on every
rank; the vocabulary is filled up to a multiple of the ranks (arXiv 1909.08053).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from megaxf.plan.memory.job import Job
from megaxf.plan.parameters import Shape


class Weight(NamedTuple):
    """One parameter as a rank holds it."""

    name: str
    """Of its module, within the layer or the model."""
    size: tuple[int, ...]
    """[out, in] of a matrix, [entries, hidden] of a table, the one extent of a norm or a bias."""

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return prod(self.size)

    @property
    def is_matrix(self) -> bool:
        """Whether it decays: matrices and tables do, norms and biases do not."""
        return len(self.size) > 1


def held_weights(job: Job) -> list[Weight]:
    """What the rank's pipeline stage trains, in the model's order; a table that is tied within the rank once."""
    shape, ranks = job.shape, job.tensor_parallel_size
    table = (-(-shape.vocab_size // ranks), shape.hidden_size)
    held = [Weight("embed_tokens", table)] if job.has_embedding else []
    if job.has_embedding and shape.structure.learned_positions:
        held.append(Weight("positions", (shape.structure.learned_positions, shape.hidden_size)))
    for part in job.parts:
        held += [weight for _ in part.layers for weight in layer_weights(shape, ranks)]
    if job.has_head:
        held += _norm(shape, "norm")
        if not shape.tie_word_embeddings:
            held.append(Weight("lm_head", table))
    return held


def borrowed_table(job: Job) -> Weight | None:
    """The copy of a tied table on the last stage, which the first stage trains."""
    if not job.shape.tie_word_embeddings or job.has_embedding or not job.has_head:
        return None
    return Weight("embed_tokens", (-(-job.shape.vocab_size // job.tensor_parallel_size), job.shape.hidden_size))


def layer_weights(shape: Shape, ranks: int) -> Iterator[Weight]:
    """One rank's weights of a decoder layer, in the model's order."""
    hidden, width = shape.hidden_size, shape.intermediate_size // ranks
    queries = shape.num_attention_heads // ranks * shape.head_dim
    keys = key_value_heads(shape, ranks) * shape.head_dim
    structure = shape.structure
    yield from _norm(shape, "input_layernorm")
    projections = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))
    for name, out in (("query_key_value", queries + 2 * keys),) if structure.fused_heads else projections:
        yield from _linear(name, (out, hidden), shape.attention_bias)
    yield from _linear("o_proj", (hidden, queries), structure.output_bias)
    if shape.qk_norm:
        yield from (Weight(name, (shape.head_dim,)) for name in ("q_norm", "k_norm"))
    yield from _norm(shape, "post_attention_layernorm")
    for name in ("gate_proj", "up_proj")[3 - structure.mlp_matrices :]:
        yield from _linear(name, (width, hidden), structure.mlp_bias)
    yield from _linear("down_proj", (hidden, width), structure.mlp_bias)


def _norm(shape: Shape, name: str) -> list[Weight]:
    return [Weight(name, (shape.hidden_size,))] * (2 if shape.structure.layer_norm else 1)


def _linear(name: str, size: tuple[int, int], bias: bool) -> Iterator[Weight]:
    yield Weight(name, size)
    if bias:
        yield Weight(name, size[:1])


def key_value_heads(shape: Shape, ranks: int) -> int:
    """Key/value heads of one rank, at least one."""
    return max(shape.num_key_value_heads // ranks, 1)

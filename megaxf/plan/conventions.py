"""Ways to count the training FLOPs of a token, and what follows from a count: MFU and time to train.

Published MFU figures use several; on one run they differ by up to a third, so that each number here says which it is.
Most count the full square of the scores, though a causal kernel skips half of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from megaxf.plan.flops import per_token
from megaxf.plan.parameters import Shape, count

SECONDS_PER_DAY = 86_400


class Convention(NamedTuple):
    """A way to count."""

    name: str
    counts: str
    """What it counts."""
    per_token: Callable[[Shape, int], float]
    """FLOPs of one token of training, of a shape on sequences of some length."""


def palm(parameters: float, width: int, sequence_length: int) -> float:
    """6 N + 12 L H Q S (PaLM, arXiv 2204.02311, appendix B); width: L H Q, of all layers' query heads."""
    return 6 * parameters + 12 * width * sequence_length


def convention_per_token(shape: Shape, sequence_length: int) -> int:
    """6 N + 12 L H Q S of all parameters: what "the convention" means in megaxf."""
    return int(palm(count(shape).total, _width(shape), sequence_length))


def full_per_token(shape: Shape, sequence_length: int) -> int:
    """Model FLOPs, but with the full square of the scores."""
    return int(palm(count(shape).matmul, _width(shape), sequence_length))


def torchtitan_per_token(shape: Shape, sequence_length: int) -> int:
    """6 (N - embeddings) + 12 L H Q S; a tied table stays (torchtitan's get_nparams_and_flops)."""
    rows = shape.structure.learned_positions + (0 if shape.tie_word_embeddings else shape.vocab_size)
    return int(palm(count(shape).total - rows * shape.hidden_size, _width(shape), sequence_length))


def megatron_per_token(shape: Shape, sequence_length: int) -> int:
    """6 a matrix element + 6 L H Q S: half of the square, though a query sees (S + 1) / 2 keys (Megatron-LM, 2025)."""
    return int(palm(count(shape).matmul, _width(shape), sequence_length)) - 6 * _width(shape) * sequence_length


CONVENTIONS = (
    Convention("model", "matrices that a token meets, scores that the mask leaves", per_token),
    Convention("convention", "6N + 12LHQS: all parameters, all scores (PaLM, nanoGPT, picotron)", convention_per_token),
    Convention("torchtitan", "the convention without the embedding look-up", torchtitan_per_token),
    Convention("full square", "the model's, with all scores", full_per_token),
    Convention("megatron", "the model's, with half of all scores", megatron_per_token),
)
"""Without recomputation, all of them."""


def mfu(flops_per_token: float, tokens_per_second: float, devices: int, peak: float) -> float:
    """The share of the peak (PaLM, arXiv 2204.02311). tokens_per_second: of all devices; peak: FLOP/s of one.

    With `per_token` it is the MFU, with what is computed again as well the HFU.
    """
    return flops_per_token * tokens_per_second / (devices * peak)


def days(flops: float, devices: int, flops_per_second: float) -> float:
    """Days that so many FLOPs take. flops_per_second: what one device achieves."""
    return flops / (devices * flops_per_second) / SECONDS_PER_DAY


def _width(shape: Shape) -> int:
    return shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim

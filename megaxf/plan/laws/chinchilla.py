"""How Hoffmann et al. (arXiv 2203.15556) count parameters and FLOPs, and the 50 shapes that they trained (table A9)."""

from __future__ import annotations

from math import log
from typing import NamedTuple

VOCABULARY = 32_000
SEQUENCE_LENGTH = 2048


class ChinchillaShape(NamedTuple):
    """A decoder with a plain MLP and relative positions."""

    hidden_size: int
    intermediate_size: int
    head_dim: int
    num_attention_heads: int
    num_hidden_layers: int

    @property
    def parameters(self) -> int:
        """L (5 d kv heads + 2 d ffw) + V d: q, k, v, o, relative positions; a table of tokens."""
        width = self.head_dim * self.num_attention_heads
        layer = 5 * self.hidden_size * width + 2 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * layer + VOCABULARY * self.hidden_size

    def flops_per_sequence(self, with_vocabulary: bool) -> int:
        """Training FLOPs of one sequence of 2,048 tokens, appendix F: three times the forward pass.

        with_vocabulary: with the embedding look-up and the logits, as the formula is printed; the paper's table A4 is
        without them.
        """
        length, hidden = SEQUENCE_LENGTH, self.hidden_size
        width = self.head_dim * self.num_attention_heads
        projections = 2 * 4 * length * hidden * width
        scores = 2 * 2 * length**2 * width + 3 * self.num_attention_heads * length**2
        mlp = 2 * length * 2 * hidden * self.intermediate_size
        vocabulary = 2 * 2 * length * hidden * VOCABULARY if with_vocabulary else 0
        return 3 * (self.num_hidden_layers * (projections + scores + mlp) + vocabulary)

    @property
    def flops_ratio(self) -> float:
        """FLOPs over 6 N D, counted as table A4 does."""
        return self.flops_per_sequence(False) / (6 * self.parameters * SEQUENCE_LENGTH)


def _shape(hidden: int, head_dim: int, heads: int, layers: int) -> ChinchillaShape:
    return ChinchillaShape(hidden, 4 * hidden, head_dim, heads, layers)


SHAPES = tuple(
    _shape(*row)
    for row in (
        *((512, 64, 8, 8), (576, 64, 9, 9), (640, 64, 10, 10), (640, 64, 10, 13), (640, 64, 10, 16)),
        *((768, 64, 12, 12), (768, 64, 12, 15), (768, 64, 12, 18), (896, 64, 14, 14), (896, 64, 14, 16)),
        *((896, 64, 14, 18), (1024, 64, 16, 16), (1024, 64, 16, 18), (1024, 64, 16, 20), (1280, 128, 10, 18)),
        *((1280, 128, 10, 21), (1408, 128, 11, 18), (1280, 128, 10, 24), (1408, 128, 11, 21), (1536, 128, 12, 19)),
        *((1408, 128, 11, 24), (1536, 128, 12, 22), (1536, 128, 12, 25), (1792, 128, 14, 20), (1792, 128, 14, 23)),
        *((1792, 128, 14, 26), (2048, 128, 16, 22), (2176, 128, 17, 22), (2048, 128, 16, 25), (2048, 128, 16, 28)),
        *((2176, 128, 17, 25), (2304, 128, 18, 24), (2176, 128, 17, 28), (2304, 128, 18, 28), (2304, 128, 18, 32)),
        *((2560, 128, 20, 26), (2560, 128, 20, 30), (2560, 128, 20, 34), (2688, 128, 22, 36), (2816, 128, 22, 36)),
        *((2944, 128, 22, 36), (3072, 128, 24, 36), (3584, 128, 28, 40), (4096, 128, 32, 42), (4352, 128, 32, 47)),
        *((4608, 128, 36, 44), (4608, 128, 32, 47), (4864, 128, 32, 47), (4992, 128, 32, 49), (5120, 128, 40, 47)),
    )
)
"""Smallest first."""


def nearest(parameters: float) -> ChinchillaShape:
    """The trained shape that is nearest in size."""
    return min(SHAPES, key=lambda shape: abs(log(shape.parameters / parameters)))

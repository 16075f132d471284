"""Compare a model before and after a conversion by what it computes: `megaxf convert --verify`.

Both sides compute in fp32, one after the other, from weights that are rounded as the output's are: what differs beyond
the order of sums is a fault. A Hugging Face folder is opened by `transformers` where that is installed, so that the
settings are tried out as well; anything else is read back with our own reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Trained
from megaxf.models.registry import ModelConfig, family
from megaxf.models.weights import Weights, fill

LONGEST = 2048
"""Tokens of the text, where the model can take so many."""
TOLERANCE = 1e-3
"""Of the largest logit. Sums in another order differ by some 1e-6 a layer, a wrong setting by far more than this."""


class Difference(NamedTuple):
    """How far the logits of the two sides are apart."""

    other: str
    """What computed the output's."""
    tokens: int
    largest_logit: float
    everywhere: float
    """Largest difference at any position."""
    late: float
    """Largest difference in the last quarter of positions, where rotary settings and windows show."""


Rounded = Callable[[str, torch.Tensor], torch.Tensor]


def compare(source: Trained, written: Trained, rounded: Rounded) -> Difference:
    """The difference of two sides on random tokens; each model is in memory once, in fp32.

    rounded: what a tensor of a name is after the output's dtype. Raises ConvertError where they differ by more than
    TOLERANCE.
    """
    length = min(source.config.max_position_embeddings, LONGEST)
    tokens = torch.randint(source.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    before = _ours(source.config, _Rounded(source.weights, rounded), tokens)
    other, after = _theirs(written, tokens)
    largest = before.abs().max().item()
    apart = (before - after).abs().amax(dim=(0, 2))
    found = Difference(other, length, largest, apart.max().item(), apart[length * 3 // 4 :].max().item())
    if not found.everywhere <= TOLERANCE * largest:
        raise ConvertError(
            f"the output does not compute what {source.path} does: with {other}, logits of up to {largest:.3g} differ "
            f"by {found.everywhere:.3g}, {found.late:.3g} in the last quarter of {length} tokens; it was not kept"
        )
    return found


class _Rounded(Weights):
    def __init__(self, weights: Weights, rounded: Rounded):
        self._weights, self._rounded, self.shapes = weights, rounded, weights.shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._rounded(name, self._weights[name])


def _ours(config: ModelConfig, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [1, seq, vocab] of megaxf's model."""
    model: Any = family(config.family).Model(config)
    fill(model, weights)
    with torch.no_grad():
        logits: torch.Tensor = model.eval().logits(model(tokens))
    return logits


def _theirs(model: Trained, tokens: torch.Tensor) -> tuple[str, torch.Tensor]:
    """(the program and class that computed them, logits) of the output."""
    if model.format == "huggingface":
        try:
            from transformers import AutoModelForCausalLM
            from transformers.utils.logging import disable_progress_bar
        except ImportError:
            pass
        else:
            disable_progress_bar()
            built = AutoModelForCausalLM.from_pretrained(str(model.path), dtype=torch.float32).eval()
            with torch.no_grad():
                return f"transformers' {type(built).__name__}", built(tokens).logits
    return f"megaxf's reader of {model.format}", _ours(model.config, model.weights, tokens)

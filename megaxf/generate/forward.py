"""A model as generation and evaluation ask it: tokens in, logits of the whole vocabulary out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from megaxf.generate.caches import RowCache
from megaxf.generate.sampling import log_probabilities
from megaxf.parallel.collectives import all_gather
from megaxf.parallel.mesh import Axis

SCORED = 256
"""Tokens whose logits exist at one time, where those of many are asked for."""


class Forward:
    """Calls a model, whole or this rank's share of it."""

    def __init__(self, model: Any, axis: Axis | None = None) -> None:
        """model: as in megaxf.models. axis: the tensor axis whose ranks hold it together, who all call alike."""
        self.model, self.axis = model, axis
        self.vocab_size = model.config.vocab_size
        self.longest = model.config.max_position_embeddings
        # What lies elsewhere is brought to the others when it is used; see loading.
        self.device = next(weight.device for weight in model.parameters() if not weight.is_meta)

    def hidden(self, tokens: Sequence[Sequence[int]], starts: Sequence[int], cache: RowCache) -> torch.Tensor:
        """Hidden states [rows, seq, hidden] of the next tokens of rows, as many of each, that stand at `starts`."""
        ids = torch.tensor(tokens, device=self.device)
        positions = torch.tensor(starts, device=self.device)[:, None]
        if ids.shape[1] > 1:
            positions = positions + torch.arange(ids.shape[1], device=self.device)
        states: torch.Tensor = self.model(ids, positions=positions, cache=cache)
        return states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] -> [tokens, vocab], on every rank; rows that only fill a rank's share up are left out."""
        own: torch.Tensor = self.model.logits(hidden)
        if self.axis is None or self.axis.size == 1:
            return own
        shares = own.new_empty(self.axis.size * len(own), own.shape[1])
        all_gather(shares, own.contiguous(), group=self.axis.group)
        return shares.unflatten(0, (self.axis.size, -1)).transpose(0, 1).flatten(1)[:, : self.vocab_size]

    def score(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities [tokens] in nats, fp32, of the targets [tokens] after hidden states [tokens, hidden]."""
        pieces = zip(hidden.split(SCORED), targets.split(SCORED), strict=True)
        return torch.cat([log_probabilities(self.logits(states), tokens) for states, tokens in pieces])


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients, and afterwards the mode that was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode

"""The loss where each tensor-parallel rank has the head's rows of a part of the vocabulary (arXiv 1909.08053)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from megaxf.models.loss import chunked_cross_entropy
from megaxf.parallel.autograd import copy_to, gather_from
from megaxf.parallel.collectives import all_gather
from megaxf.parallel.mesh import Axis

Loss = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""(hidden [batch, seq, hidden], head weight, labels [batch, seq], *, z_loss) -> as chunked_cross_entropy."""


class VocabularyShare:
    """This rank's part of the vocabulary; see megaxf.models.logits.Vocabulary."""

    def __init__(self, axis: Axis, size: int) -> None:
        self.size = size
        share = -(-size // axis.size)
        self.first = axis.rank * share
        self.rows = min(share, size - self.first)
        """Rows of the rank's weight that belong to the vocabulary; the others fill it up."""
        self._axis = axis

    def combine(self, statistics: torch.Tensor) -> torch.Tensor:
        """(largest, sum of exponentials, target's logit) [3, tokens] of the own part -> of the whole."""
        of_all = statistics.new_empty(self._axis.size * 3, statistics.shape[1])
        with self._axis.message(statistics.device):
            all_gather(of_all, statistics, group=self._axis.group)
        of_all = of_all.unflatten(0, (-1, 3))
        largest = of_all[:, 0].amax(0)
        total = (of_all[:, 1] * (of_all[:, 0] - largest).exp()).sum(0)
        return torch.stack([largest, total, of_all[:, 2].sum(0)])


def vocab_parallel_loss(axis: Axis, sequence: bool, size: int, compiled: bool = False) -> Loss:
    """The loss over a vocabulary of `size` cut over the axis; with `sequence` of hidden states [batch, seq/tp, hidden].

    The logits of rows that only fill up a rank's weight are never made.
    """
    share = VocabularyShare(axis, size)
    enter = gather_from if sequence else copy_to

    def loss(
        hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, *, z_loss: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = weight[: share.rows]
        return chunked_cross_entropy(
            enter(hidden, axis), own, labels, z_loss=z_loss, vocabulary=share, compiled=compiled
        )

    return loss

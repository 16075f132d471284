"""The weights of a model by name, read when they are asked for: what checkpoints and foreign files give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

PIECE = 1 << 20
"""Elements of a piece, about: 4 MB of fp32, which stay in the CPU's cache and in memory that is used again."""


class Weights(Mapping[str, torch.Tensor]):
    """Whole tensors by name, in the model's order, each read when asked for and not kept.

    A source defines `shapes` and `__getitem__`, and `pieces` and `rows` where it can read a part of a tensor alone.
    """

    shapes: Mapping[str, torch.Size]
    """Known before any tensor is read."""

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """One tensor cut along its first dimension, for those who need not hold it whole."""
        yield from self[name].split(rows_of_piece(self.shapes[name]))

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor, for those who hold a share of it."""
        return self[name][first : first + count]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def rows_of_piece(shape: torch.Size) -> int:
    """How many rows of a tensor make a piece."""
    return max(PIECE // max(shape[1:].numel(), 1), 1)


@torch.no_grad()
def fill(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Set all parameters from weights of any float dtype, one at a time. Raises KeyError where one is missing."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])

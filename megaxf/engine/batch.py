"""Rows of token ids as tensors on a device."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch

IGNORED = -100
"""Label of a target that is not counted."""


class ArrayBatch(Protocol):
    """What the data loader gives: numpy arrays [rows, sequence]; all but the first two may be absent."""

    @property
    def tokens(self) -> np.ndarray:
        """Ids."""

    @property
    def labels(self) -> np.ndarray:
        """The id that follows each, or -100."""

    @property
    def positions(self) -> np.ndarray | None:
        """Places within documents."""

    @property
    def document_ids(self) -> np.ndarray | None:
        """Equal within a document."""

    @property
    def sources(self) -> np.ndarray | None:
        """Number of the source of each row, [rows]."""


class TorchBatch(NamedTuple):
    """Rows of one forward pass; int64 tensors [rows, sequence] where nothing else is said."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """The next token of each place, -100 where it is not counted."""
    positions: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None
    samples: torch.Tensor | None = None
    """[rows]: the place of each row in the order of the data, which dropout is drawn by."""
    sources: torch.Tensor | None = None
    """[rows]: the number of the source that each row comes from."""

    def counted(self) -> int:
        """The number of targets that count in the loss."""
        return int((self.labels != IGNORED).sum())

    def idle_rows(self) -> int:
        """The number of rows without a target that counts."""
        return int((self.labels == IGNORED).all(1).sum())


def to_torch(batch: ArrayBatch, device: torch.device | str) -> TorchBatch:
    """The same rows on a device, int64, in memory of their own: that of the loader is used again.

    From pinned memory they are copied while the program goes on.
    """

    def move(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.as_tensor(array).to(device, torch.int64, non_blocking=True, copy=True)

    tokens, labels = move(batch.tokens), move(batch.labels)
    assert tokens is not None and labels is not None
    return TorchBatch(tokens, labels, move(batch.positions), move(batch.document_ids), sources=move(batch.sources))


def micro_batches(batch: TorchBatch, size: int) -> list[TorchBatch]:
    """The rows in portions of `size`, in order; raises ValueError where `size` does not divide the rows."""
    rows = len(batch.tokens)
    if rows % size:
        raise ValueError(f"{rows} rows cannot be cut into micro-batches of {size}")
    parts = [[None] * (rows // size) if field is None else field.split(size) for field in batch]
    return [TorchBatch(*fields) for fields in zip(*parts, strict=True)]

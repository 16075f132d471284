"""What of an engine's state a rank writes: its pieces, and copies of them in the host's memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

import torch

from megaxf.checkpoint.errors import CheckpointError
from megaxf.parallel.boxes import Piece


class State(Protocol):
    """The part of an engine that a checkpoint reads; see megaxf.engine.protocol."""

    def state_shapes(self) -> dict[str, torch.Size]:
        """The whole shape of each parameter."""
        ...

    def counters(self) -> dict[str, float]:
        """What is counted."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """What this rank holds."""
        ...


def has_moments(state: State) -> bool:
    """Whether there is more to save than the weights: before the first update, moments are zero."""
    return state.counters()["optimizer_step"] > 0


def own_pieces(state: State) -> Iterator[Piece]:
    """What this rank is to write: together the ranks write every element of every tensor once."""
    moments = has_moments(state)
    for piece in state.pieces():
        if (moments or piece.part == "master") and (own := piece.own()) is not None:
            yield own


class HostBuffers:
    """Memory for one copy of what this rank writes, kept from save to save.

    12 bytes for each parameter of its share, 4 before the first update: of a model of P parameters on N ranks that each
    hold other parts (ZeRO 1 to 3, tensor, pipeline) or copies of which each writes some, 12 P / N. Of a GPU's tensors
    it is pinned, and torch rounds each pinned tensor up to a power of two.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def copy(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces with values that nothing changes until the next call."""
        copies = []
        device = None
        for piece in pieces:
            held = self._held.get((piece.key, piece.offsets))
            if held is None or held.shape != piece.values.shape:
                held = torch.empty(piece.values.shape, pin_memory=piece.values.is_cuda)
                self._held[piece.key, piece.offsets] = held
            held.copy_(piece.values, non_blocking=True)
            device = piece.values.device if piece.values.is_cuda else device
            copies.append(piece._replace(values=held))
        if device is not None:
            torch.cuda.synchronize(device)
        return copies


def finite(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces in turn. Raises CheckpointError at one with a number that is not finite, naming others that follow."""
    left = iter(pieces)
    for piece in left:
        if not _is_finite(piece.values):
            others = (one for one in left if not _is_finite(one.values))
            names = [f"{fault.name} ({fault.part})" for fault in chain([piece], others)]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(
                f"these are not finite: {', '.join(names[:3])}{more}; "
                "training has diverged: continue from an earlier checkpoint with a lower learning rate"
            )
        yield piece


def _is_finite(values: torch.Tensor) -> bool:
    """A sum is found in half the time; the numbers themselves decide where it is too large for its own precision."""
    return math.isfinite(values.sum()) or all(map(math.isfinite, torch.stack(values.aminmax()).tolist()))

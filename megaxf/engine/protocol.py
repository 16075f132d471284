"""What the training loop, the checkpoint and the converter may ask of an engine, whichever holds the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch

from megaxf.engine.batch import TorchBatch
from megaxf.parallel.apply import Placed
from megaxf.parallel.boxes import PARTS, Piece

MOMENTS = PARTS[1:]
"""What AdamW keeps of each parameter."""
GRADIENT = "gradient"
"""Part of the pieces of a gradient."""
SeeGradient = Callable[[Iterator[Piece]], None]


class StepResult(NamedTuple):
    """One optimizer step, the same numbers on every rank."""

    loss: float
    """Mean negative log-likelihood of the counted targets of the global batch, in nats; 0 where none is counted."""
    z_loss: float
    """Mean penalty on the log-partition, already weighted by its coefficient; part of the gradient, not of `loss`."""
    grad_norm: float
    """Length of the gradient of all parameters before clipping; infinite where it is not finite, and then the step
    changed nothing on any rank."""
    tokens: int
    """Counted targets of the global batch."""
    idle_rows: int = 0
    """Rows of the global batch without such a target."""
    by_source: tuple[tuple[float, int], ...] = ()
    """For each source of the data, where there are several: sum of negative log-likelihoods, counted targets."""
    skipped: bool = False
    """fp16: the scaled gradient overflowed, so the step changed nothing, and the next one has a smaller scale. An
    overflow at the smallest scale is not a skipped step but a gradient that is not finite."""
    refused: bool = False
    """The loss was not below the limit that was given, so the step changed nothing; `loss` is what it was."""


class Engine(Protocol):
    """A model with its optimizer, cut over ranks in some way.

    What is marked collective is called by every rank, in one order.
    """

    @property
    def optimizer_step(self) -> int:
        """Updates made so far (AdamW's count)."""
        ...

    @property
    def placed(self) -> Placed:
        """The part of the model that this rank computes."""
        ...

    def train_step(
        self,
        micro_batches: Sequence[TorchBatch],
        learning_rate: float,
        loss_limit: float | None = None,
        see_gradient: SeeGradient | None = None,
    ) -> StepResult:
        """One update from this rank's share of the global batch; collective.

        The gradient is that of (sum of the loss over all targets of all ranks) / (their number), however it is cut.
        loss_limit: makes no update where the loss is not below it, which costs a tiny message between ranks.
        see_gradient: is given the gradient before it is clipped, as pieces of what this rank holds of it: together the
        ranks hold every element. Called between the backward passes and the update; it must change nothing.
        Where the time goes, the mesh's clock counts, in the parts of megaxf.parallel.clock.
        """
        ...

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """This rank's sum of negative log-likelihoods and its number of targets; leaves the training state alone.

        Collective in so far as every rank has to call it equally often: parameters may be spread over ranks.
        """
        ...

    def state_shapes(self) -> dict[str, torch.Size]:
        """The whole shape of each parameter by name, in the model's order, a tied one once; nothing is moved."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """What this rank holds of the fp32 master weights ("master") and AdamW's moments, as views of its memory.

        A piece is read or written before the next one is asked for: what is offloaded to a disk is in memory for so
        long. Together the ranks hold every element. Not collective.
        """
        ...

    def counters(self) -> dict[str, float]:
        """What else the next step depends on: "optimizer_step", the updates made so far, and in fp16 the loss scale."""
        ...

    def loaded(self, counters: Mapping[str, float]) -> None:
        """Take up what was written into the pieces, the weights that the model computes with among them; collective.

        counters: as `counters` gave them; what is missing there stays as it is in a fresh engine.
        """
        ...

    def replicated(self) -> dict[str, torch.Tensor]:
        """What this rank holds and every rank along `mesh.replicas` should hold bit for bit alike, by name."""
        ...

    def model_for_inference(self) -> AbstractContextManager[torch.nn.Module]:
        """The model to read, in evaluation mode, while the context lasts; collective.

        Its weights are whole, but with tensor parallelism a rank's share.

        To compute a loss call `evaluate`: with ZeRO 3 a forward pass gives the weights back, layer by layer.
        """
        ...

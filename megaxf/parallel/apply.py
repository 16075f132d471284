"""From a textbook model to the part of it that this rank computes: the one place that fixes the order of the transforms.

    placed = place(model, run, mesh)      # the model was made on the meta device: nothing is held yet
    materialise(placed, run.seed, device) # this rank's share of every weight, a function of (seed, name)

The order: pipeline (drop the layers of other stages), tensor (swap modules by TENSOR_PLAN), context (attention over
the keys of all ranks), compile (each layer). Recomputation is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from megaxf.parallel.cut import Cut
from megaxf.parallel.mesh import Mesh


@dataclass(frozen=True)
class Placed:
    """A model of which this rank holds its part."""

    model: Any
    """The family's Model with this rank's parameters; on a pipeline stage, with its own layers only."""
    mesh: Mesh
    shapes: dict[str, torch.Size]
    """The whole shape, without padding, of every parameter of the whole model, in its order."""
    stages: dict[str, tuple[int, ...]]
    """The pipeline stages that hold each of them; two for a table that is tied over stages."""
    weights: dict[str, torch.nn.Parameter]
    """This rank's parameters by their names in the whole model."""
    cuts: dict[str, Cut]
    """The cut of every parameter of the whole model."""
    loss: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    """As megaxf.models.loss.chunked_cross_entropy, for hidden states and head weight as this rank has them."""

"""From a textbook model to the part of it that a rank computes: the one place that fixes the order of the transforms.

    placed = place(run, mesh)             # on the meta device: nothing is held yet
    materialise(placed, run.seed, device) # this rank's share of every weight, a function of (seed, name)

The order: pipeline (drop the layers of other stages), tensor (swap modules by TENSOR_PLAN), context (attention over
the keys of all ranks), compile (each layer). Recomputation is the model's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from megaxf.config import Run
from megaxf.models.initialize import initial_weight
from megaxf.models.loss import chunked_cross_entropy
from megaxf.models.registry import family
from megaxf.parallel.collectives import sum_tensor
from megaxf.parallel.context import apply_context, own_columns
from megaxf.parallel.cut import Cut
from megaxf.parallel.loss import Loss, vocab_parallel_loss
from megaxf.parallel.mesh import Axis, Mesh
from megaxf.parallel.pipeline import keep_stage, stages_of_parameters
from megaxf.parallel.tensor import apply_tensor, partial_gradients, tensor_cuts
from megaxf.plan.stages import split_layers


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
    cuts: dict[str, Cut]
    """The cut of every parameter of the whole model."""
    partial: dict[str, Axis]
    """The parameters of whose gradient each rank computes a part, and the ranks whose parts make it whole."""
    loss: Loss

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by their names in the whole model."""
        return dict(self.model.named_parameters())

    def columns(self, batch: Any) -> Any:
        """What this rank computes of rows that its context axis shares; see `own_columns`."""
        return own_columns(batch, self.mesh.axis("context"))


def blank_model(run: Run[Any]) -> Any:
    """The family's whole Model with the settings of `run.train`, on the meta device: shapes, and nothing held."""
    train = run.train
    with torch.device("meta"):
        return family(run.model.family).Model(
            run.model,
            attention_backend=train.attention_backend,
            recompute=train.recompute,
            recompute_every=train.recompute_every,
            dropout=train.dropout,
            seed=run.seed,
        )


def place(run: Run[Any], mesh: Mesh) -> Placed:
    """What this rank computes of the run's model, still on the meta device; collective."""
    model = blank_model(run)
    plan, sequence, axis = family(run.model.family).TENSOR_PLAN, run.parallel.sequence_parallel, mesh.axis("tensor")
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    parts = split_layers(run)
    stages = stages_of_parameters(model, parts)
    cuts = tensor_cuts(model, plan, axis.size)
    keep_stage(model, parts[mesh.axis("pipeline").rank])
    partial: dict[str, Axis] = {}
    compiled = run.train.compile
    loss: Loss = functools.partial(chunked_cross_entropy, compiled=compiled)
    if axis.size > 1:
        partial = partial_gradients(model, plan, axis, sequence)
        apply_tensor(model, plan, axis, sequence)
        loss = vocab_parallel_loss(axis, sequence, run.model.vocab_size, compiled)
    apply_context(model, mesh.axis("context"))
    if compiled:
        for layer in model.layers:
            layer.compile()
    return Placed(model, mesh, shapes, stages, cuts, partial, loss)


def materialise(
    placed: Placed, seed: int, device: torch.device | str, after: Callable[[nn.Module], None] = lambda module: None
) -> None:
    """Give every parameter storage and its initial value, a function of (seed, name) and of no rank.

    after: called with each module once its own parameters are there, and before those of the next one are: what holds
    parameters apart (ZeRO 3) takes them then, so that no rank ever holds them all.
    """
    axis = placed.mesh.axis("tensor")
    names = {id(weight): name for name, weight in placed.weights.items()}
    for module in placed.model.modules():
        own = list(module.named_parameters(recurse=False))
        for key, weight in own:
            if weight.is_meta:
                name = names[id(weight)]
                whole = initial_weight(placed.model, name, placed.shapes[name], seed)
                share = placed.cuts[name].take(whole, axis).to(device, weight.dtype, copy=True)
                setattr(module, key, _summed(nn.Parameter(share), placed.partial.get(name)))
        if own:
            after(module)


def _summed(weight: nn.Parameter, axis: Axis | None) -> nn.Parameter:
    """The weight, whose gradient is made whole over the ranks of the axis that each compute a part of it, in fp32."""
    if axis is not None and axis.size > 1:
        weight.register_hook(lambda gradient: _sum(gradient, axis))
    return weight


def _sum(gradient: torch.Tensor, axis: Axis) -> torch.Tensor:
    wide = gradient.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return sum_tensor(wide, axis).to(gradient.dtype)


def is_counted(placed: Placed, names: Iterable[str]) -> set[str]:
    """The parameters that this rank counts in a sum over the tensor axis, so that each element is counted once."""
    axis = placed.mesh.axis("tensor")
    return {name for name in names if placed.cuts[name].copy(axis)[0] == 0}

"""Seconds of a training step, item by item, on the slowest pipeline stage.

    step = predict(layout(run, world_size), find("h100"))
    step.seconds, step.items, step.tokens_per_second_per_gpu, step.mfu

Everything is in closed form over numpy arrays: a Layout whose fields are arrays gives a Step whose figures are arrays,
one for each layout, at some microseconds each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.conventions import convention_per_token
from megaxf.plan.flops import per_token
from megaxf.plan.parameters import layer_matrices
from megaxf.plan.throughput.collectives import links
from megaxf.plan.throughput.constants import CALIBRATED, MEGAXF, Constants, Software
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import Layout
from megaxf.plan.throughput.messages import Messages
from megaxf.plan.throughput.operators import Passes, head, layer, machine, update
from megaxf.plan.throughput.pipeline import bubble

ITEMS = {
    "matrix products": "of the layers, forward and backward",
    "attention": "scores, softmax and values",
    "norms and activations": "bound by memory",
    "recomputation": "what the backward pass makes again",
    "output matrix and loss": "0 where another stage is slower",
    "tensor parallelism": "messages that computation does not hide",
    "context parallelism": "the same, for keys and values",
    "weights over data ranks": "ZeRO 3: gathered weights and scattered gradients, where not hidden",
    "pipeline messages": "between stages, where not hidden",
    "pipeline bubble": "waiting for other stages",
    "gradients over data ranks": "their sum, and new weights, where not hidden",
    "optimizer": "norm of the gradients and update",
}
"""Items of a step, in the order of a page."""


@dataclass(frozen=True)
class Step:
    """A predicted step; figures are arrays where the layout's fields are."""

    layout: Layout
    hardware: Hardware
    items: dict[str, Any]
    """Seconds by the names of ITEMS; they sum to the step."""
    forward: Any
    """Seconds of a micro-batch's forward pass in the slowest stage; for timelines."""
    backward: Any

    @property
    def seconds(self) -> Any:
        """Of the step."""
        return sum(self.items.values())

    @property
    def tokens_per_second_per_gpu(self) -> Any:
        """Of the global batch, shared over all GPUs."""
        tokens = self.layout.global_batch_size * self.layout.sequence_length
        return tokens / self.seconds / self.layout.world_size

    @property
    def model_flops(self) -> Any:
        """Achieved FLOP/s of a GPU by `flops.per_token`: causal attention, no recomputation."""
        return per_token(self.layout.shape, self.layout.sequence_length) * self.tokens_per_second_per_gpu

    @property
    def mfu(self) -> Any:
        """`model_flops` as a share of the peak."""
        return self.model_flops / self.hardware.peak(self.layout.precision)

    @property
    def convention_mfu(self) -> Any:
        """The same by 6N + 12 L H Q S (arXiv 2204.02311)."""
        flops = convention_per_token(self.layout.shape, self.layout.sequence_length)
        return flops * self.tokens_per_second_per_gpu / self.hardware.peak(self.layout.precision)


class Stage(NamedTuple):
    """The slowest stage, and what others have to do."""

    layers: Any
    head: Any
    """1 where the output matrix is in it, else 0."""
    others: Any
    """Seconds of a micro-batch in a stage of average work among the others."""


def predict(
    layout: Layout, hardware: Hardware, software: Software = MEGAXF, constants: Constants | None = None
) -> Step:
    """The step of a layout. Raises PlanError where the hardware cannot do it.

    constants: by default those of the hardware's architecture, with what was measured on it.
    """
    constants = constants or CALIBRATED[hardware.architecture]._replace(**hardware.measured)
    speed, paths = machine(layout, hardware, software, constants), links(layout, hardware, constants)
    messages = Messages(layout, paths, software, constants)
    passes = layer(layout, speed, software)
    shares, once = layout.remade(), passes.forward
    again = sum(share * seconds for share, seconds in zip(shares, once, strict=True))
    forward = sum(once)
    backward = passes.matrices + passes.attention + passes.activations - forward + again
    sent = {
        "tensor parallelism": messages.tensor(shares[0]),
        "context parallelism": messages.context(),
        "weights over data ranks": messages.weights(forward, backward),
    }
    each = forward + backward + sum(sent.values())
    loss = head(layout, speed)
    stage = _slowest(layout, each, loss)
    count, share, parameters = layout.micro_batches, forward / each, _parameters(layout, stage)
    waiting = bubble(
        layout.pipeline_schedule,
        layout.pipeline_parallel_size,
        count,
        stage.others * share,
        stage.others * (1 - share),
        layout.parts,
        software.waits,
    )
    sharded = np.asarray(layout.zero_stage) > 0
    items = _compute(passes, again, sent, loss, count, stage) | {
        "pipeline messages": messages.boundaries() * count,
        "pipeline bubble": waiting,
        "gradients over data ranks": messages.gradients(parameters, backward * stage.layers),
        "optimizer": update(parameters / np.where(sharded, layout.replicas, 1), speed),
    }
    items = {name: items[name] + 0.0 for name in ITEMS}
    return Step(layout, hardware, items, stage.layers * each * share, stage.layers * each * (1 - share))


def _compute(passes: Passes, again: Any, sent: dict[str, Any], loss: Any, count: Any, stage: Stage) -> dict[str, Any]:
    """Items of all micro-batches in the slowest stage."""
    each = {
        "matrix products": passes.matrices,
        "attention": passes.attention,
        "norms and activations": passes.activations,
        "recomputation": again,
        **sent,
    }
    found = {name: seconds * stage.layers * count for name, seconds in each.items()}
    return found | {"output matrix and loss": loss * stage.head * count}


def _slowest(layout: Layout, each: Any, loss: Any) -> Stage:
    """each: seconds of a micro-batch in a layer; loss: in the output matrix and the loss."""
    stages, everything = layout.pipeline_parallel_size, layout.shape.num_hidden_layers
    most, last = layout.layers()
    with_head = (last * each + loss >= most * each) | (np.asarray(stages) == 1)
    layers = np.where(with_head, last, most)
    own = layers * each + with_head * loss
    others = (everything * each + loss - own) / np.maximum(np.asarray(stages) - 1, 1)
    return Stage(layers, with_head * 1.0, others)


def _parameters(layout: Layout, stage: Stage) -> Any:
    """That a rank of the slowest stage holds."""
    shape = layout.shape
    alone = np.asarray(layout.pipeline_parallel_size) == 1
    tables = np.where(alone & (not shape.tie_word_embeddings), 2, 1) * shape.vocab_size * shape.hidden_size
    return (stage.layers * layer_matrices(shape) + tables) / layout.tensor_parallel_size

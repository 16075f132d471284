"""Seconds of a step's messages that computation does not hide, by what they are for. All figures may be arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megaxf.plan.parameters import layer_matrices
from megaxf.plan.throughput.collectives import (
    Links,
    boundary_bytes,
    context_bytes,
    gather_bytes,
    reduce_bytes,
    tensor_bytes,
)
from megaxf.plan.throughput.constants import Constants, Software
from megaxf.plan.throughput.layout import Layout

BUCKETS = 10
"""Messages that a model's gradients are sent in, or so."""


@dataclass(frozen=True)
class Messages:
    """Of a layout over links, by the habits of a software."""

    layout: Layout
    links: Links
    software: Software
    constants: Constants

    def tensor(self, remade: Any) -> Any:
        """Of one micro-batch in one layer. remade: share of the matrix products that are made again, with messages.

        Sequence parallelism gathers a saved share of the sequence once more in the backward pass.
        """
        layout = self.layout
        sent = tensor_bytes(layout.tokens, layout.shape.hidden_size, layout.tensor_parallel_size, layout.element)
        sent = sent * (1 + remade / 2 + np.where(layout.sequence_parallel, 1 / 4, 0))
        return self._exposed(self.links.seconds("tensor", sent, 4), np.inf, self.software.hides_tensor)

    def context(self) -> Any:
        """Of one micro-batch in one layer: keys and values, again in the backward pass, and their gradients."""
        layout, shape = self.layout, self.layout.shape
        keys = np.maximum(shape.num_key_value_heads / layout.tensor_parallel_size, 1) * shape.head_dim
        sent = 3 * context_bytes(layout.tokens, keys, layout.context_parallel_size, layout.element)
        return self._exposed(self.links.seconds("context", sent, 3), np.inf, self.software.hides_context)

    def weights(self, forward: Any, backward: Any) -> Any:
        """ZeRO 3, of one micro-batch in one layer: weights gathered forward and backward, gradients scattered.

        forward, backward: seconds of computation beside which they run.
        """
        layout, hides = self.layout, self.software.hides_weights
        elements = layer_matrices(layout.shape) / layout.tensor_parallel_size
        weights = gather_bytes(layout.element * elements, layout.replicas)
        gradients = gather_bytes(self.software.gradient_bytes * elements, layout.replicas)
        there = self._exposed(self.links.seconds("replicas", weights), forward, hides)
        back = self._exposed(self.links.seconds("replicas", weights + gradients, 2), backward, hides)
        return np.where(np.asarray(layout.zero_stage) == 3, there + back, 0.0)

    def boundaries(self) -> Any:
        """Of one micro-batch on one stage: the residual stream one way and its gradient the other, for each part."""
        layout = self.layout
        tokens = layout.tokens / np.where(layout.sequence_parallel, layout.tensor_parallel_size, 1)
        one = self.links.neighbour(boundary_bytes(tokens, layout.shape.hidden_size, layout.element))
        return 2 * one * layout.parts * (1 - self.software.hides_pipeline)

    def gradients(self, parameters: Any, backward: Any) -> Any:
        """ZeRO 0 to 2, of a step: the sum over ranks, and what ZeRO gathers after the update.

        parameters: of a rank. backward: seconds of a micro-batch's backward pass, beside the last of which it may run.
        """
        layout, software = self.layout, self.software
        zero, ranks = np.asarray(layout.zero_stage), layout.replicas
        size = software.gradient_bytes * parameters
        scattered = (zero == 2) | ((zero == 1) & software.scatters)
        rounds = np.where(zero == 2, layout.micro_batches, 1)
        sent = np.where(scattered, rounds * gather_bytes(size, ranks), reduce_bytes(size, ranks))
        gathered = gather_bytes(layout.element * parameters, ranks)
        summed, renewed = (
            self._exposed(self.links.seconds("replicas", size, count), backward * rounds, software.hides_data)
            for size, count in ((sent, BUCKETS * rounds), (gathered, BUCKETS))
        )
        return np.where(zero == 3, 0.0, summed + np.where(zero > 0, renewed, 0.0))

    def _exposed(self, sent: Any, cover: Any, hides: float) -> Any:
        """What of `sent` seconds of messages a step pays where a share of them runs beside `cover` seconds of
        computation: what outlasts it, and that the computation is slower meanwhile."""
        beside = np.minimum(hides * sent, cover)
        return sent - beside + self.constants.interference * beside

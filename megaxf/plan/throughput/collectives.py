"""Bytes and seconds of messages between ranks, on the link that they cross. All arguments may be arrays.

A ring over n ranks sends (n - 1) / n of a tensor from each rank for a reduce-scatter or an all-gather, and twice that
for an all-reduce. A ring that passes through nodes leaves each of them over the network ports of all its members there:
it is as fast as these together, or as the link within the node where that is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.throughput.constants import Constants
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import Layout


def gather_bytes(size: Any, ranks: Any) -> Any:
    """Sent by each rank to gather, or to reduce and scatter, a tensor of `size` bytes."""
    return (ranks - 1) / ranks * size


def reduce_bytes(size: Any, ranks: Any) -> Any:
    """Sent by each rank to sum a tensor of `size` bytes on all ranks."""
    return 2 * gather_bytes(size, ranks)


def tensor_bytes(tokens: Any, hidden: int, ranks: Any, element: int = 2) -> Any:
    """Sent by a rank for one layer and micro-batch, forward and backward: four all-reduces of the residual stream, or
    as much by sequence parallelism's gathers and scatters (arXiv 2205.05198)."""
    return 4 * reduce_bytes(element * tokens * hidden, ranks)


def context_bytes(tokens: Any, keys: Any, ranks: Any, element: int = 2) -> Any:
    """Sent by a rank for one layer's forward pass: keys and values of its `tokens`, to all others."""
    return (ranks - 1) * 2 * element * tokens * keys


def boundary_bytes(tokens: Any, hidden: int, element: int = 2) -> Any:
    """Of the residual stream of a micro-batch at a boundary between stages, one way."""
    return element * tokens * hidden


class Group(NamedTuple):
    """Ranks that exchange messages."""

    size: Any
    local: Any
    """Those of them in one node."""


class Links(NamedTuple):
    """Where the axes of a mesh lie, and how fast messages are there."""

    groups: Mapping[str, Group]
    """tensor, context, data, pipeline, and replicas: data and context."""
    link: float
    network: float
    hop: float

    def seconds(self, axis: str, sent: Any, messages: Any = 1) -> Any:
        """Of `messages` collectives along an axis in which each rank sends so many bytes in all."""
        size, local = self.groups[axis]
        crosses = size > local
        speed = np.where(crosses, np.minimum(self.link, local * self.network), self.link)
        hops = np.where(crosses, size / local, 1)
        return np.where(size > 1, sent / speed + messages * self.hop * hops, 0.0)

    def neighbour(self, sent: Any) -> Any:
        """Seconds of a message from one pipeline stage to the next."""
        size, local = self.groups["pipeline"]
        speed = np.where(local >= size, self.link, self.network)
        return np.where(size > 1, sent / speed + self.hop, 0.0)


def links(layout: Layout, hardware: Hardware, constants: Constants) -> Links:
    """The links of a layout. Raises PlanError where it needs a network that the hardware does not have."""
    sizes = {
        "pipeline": layout.pipeline_parallel_size,
        "data": layout.data_parallel_size,
        "context": layout.context_parallel_size,
        "tensor": layout.tensor_parallel_size,
    }
    groups, stride = {}, 1
    for axis in reversed(layout.order):
        local = np.clip(hardware.node_size // stride, 1, sizes[axis])
        groups[axis] = Group(np.asarray(sizes[axis]), local)
        stride = stride * sizes[axis]
    data, context = groups["data"], groups["context"]
    groups["replicas"] = Group(data.size * context.size, data.local * context.local)
    if hardware.network_bandwidth is None and np.any(layout.world_size > hardware.node_size):
        raise PlanError(
            f"{layout.world_size} ranks are more than the {hardware.node_size} of one node, and the hardware table "
            f"has no network for {hardware.name}; give network_gb_s in a file for --hardware, or calibrate over nodes"
        )
    return Links(
        groups,
        hardware.link_bandwidth * constants.link,
        (hardware.network_bandwidth or 0) * constants.network,
        constants.hop_seconds,
    )

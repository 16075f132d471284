"""What a run's step costs in time, for the comparison of ways to make it fit."""

from __future__ import annotations

from typing import Any

from megaxf.plan.memory.job import Job, jobs
from megaxf.plan.memory.weights import held_weights
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.step import predict

HOST_LINK = 25e9
"""Bytes a second between a GPU and its host, one way: about what PCIe 4 x16 gives."""
HOST_UPDATE = 25e9
"""Bytes a second that the host's memory has for the update of one rank: 200 GB/s, shared by eight."""
UPDATE_BYTES = 28
"""Read and written for one parameter of AdamW in fp32: gradient, and twice master and both moments."""


def step_seconds(run: Any, world_size: int, hardware: Hardware) -> float:
    """Seconds of a step: the model of megaxf.plan.throughput, and what offloading adds. Raises PlanError."""
    found = predict(layout(run, world_size), hardware)
    return float(found.seconds) + max(map(offload_seconds, jobs(run, world_size)))


def offload_seconds(job: Job) -> float:
    """Of a step, not overlapped with anything (the volumes of ZeRO-Offload, arXiv 2101.06840).

    Optimizer: gradients down and weights up once, and the update in the host's memory. Weights: down to the GPU for the
    forward and for the backward pass of each micro-batch.
    """
    share = sum(weight.elements for weight in held_weights(job)) / job.replicas
    seconds = 0.0
    if job.offload_optimizer != "none":
        seconds += 2 * job.element * share / HOST_LINK + UPDATE_BYTES * share / HOST_UPDATE
    if job.offload_parameters != "none":
        seconds += 2 * job.micro_batches * job.element * share / HOST_LINK
    return seconds

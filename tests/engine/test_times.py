"""Where a step's time goes is counted in every layout, each message among it."""

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from megaxf.engine import micro_batches
from megaxf.parallel.clock import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from megaxf.train.breakdown import breakdown
from tests.distributed.tiny import global_batch, own_rows, tiny_engine, tiny_mesh
from tests.parity.matrix import matrix_run

TENSOR = {"tensor_parallel_size": 2}
EVEN = {"sequence_length": 16}
LAYOUTS = {
    "plain": ({}, 0),
    "zero 1": ({}, 1),
    "zero 2": ({}, 2),
    "zero 3": ({}, 3),
    "context": ({"context_parallel_size": 2}, 1),
    "pipeline": ({"pipeline_parallel_size": 2}, 1),
    "two parts a stage": ({"pipeline_parallel_size": 2, "pipeline_schedule": "dualpipev"}, 1),
    "tensor": (TENSOR, 1),
    "sequence": (TENSOR | {"sequence_parallel": True}, 3),
}


class Messages(TorchDispatchMode):
    """Notes in which part of the clock each message is begun."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.parts = clock, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).startswith("c10d"):
            self.parts.append((str(func), self.clock._part))
        return func(*args, **(kwargs or {}))


def a_step(parallel, stage):
    """(seconds of each part, the parts in which messages were begun)."""
    run = matrix_run("four layers", parallel=parallel, engine={"zero_stage": stage}, data=EVEN)
    engine, mesh = tiny_engine(run), tiny_mesh(run)
    batches = micro_batches(own_rows(global_batch(0, run), mesh), 2)
    mesh.clock.clear()
    with Messages(mesh.clock) as messages:
        engine.train_step(batches, 1e-3)
    return mesh.clock.read(), messages.parts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_message_counts_as_communication(ranks2, layout):
    for seconds, messages in ranks2(a_step, *LAYOUTS[layout]):
        assert set(seconds) == {FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER}
        assert all(value > 0 for value in seconds.values()), seconds
        assert messages
        # Tensor parallelism begins its messages early and waits for them late: waiting is what counts.
        begun = [message for message, part in messages if part != COMMUNICATION]
        assert layout in ("tensor", "sequence") or begun == [], begun


def test_a_breakdown_adds_up_to_the_step():
    parts = {"data": 1.0, FORWARD: 2.0, BACKWARD: 4.0, COMMUNICATION: 0.5, OPTIMIZER: 0.25, "checkpoint": 0.125}
    times = breakdown(parts, seconds=10.0, saving=0.0)
    assert times == {
        "data": 1.0,
        "forward_backward": 6.0,
        "communication": 0.5,
        "optimizer": 0.25,
        "checkpoint": 0.125,
        "other": 2.125,
    }
    assert sum(times.values()) == 10.0
    assert breakdown(parts, seconds=10.0, saving=3.0)["checkpoint"] == 3.125
    assert sum(breakdown({}, 1.0, 0.0).values()) == 1.0

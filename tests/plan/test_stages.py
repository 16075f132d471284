"""Of how many micro-batches a pipeline stage keeps activations at a time."""

import pytest

from megaxf.engine.timeline import instructions
from megaxf.plan.stages import in_flight

SIZES = [(2, 2), (2, 8), (3, 6), (4, 4), (4, 8), (4, 24), (8, 16)]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipev"])
def test_micro_batches_in_flight_are_those_of_the_instructions(schedule):
    for stages, count in SIZES:
        if schedule == "dualpipev" and count < 2 * stages:
            continue
        for stage, commands in enumerate(instructions(schedule, stages, count)):
            held = most = 0
            for command in commands:
                held += {"ForwardPass": 1, "BackwardPass": -1}.get(command.name, 0)
                most = max(most, held)
            assert held == 0
            assert most == sum(in_flight(schedule, stages, stage, count)), (stages, count, stage)

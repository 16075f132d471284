"""When each stage of a pipeline computes, found by running the instructions of a schedule against a clock.

    timeline = simulate("1f1b", stages=4, micro_batches=8)
    timeline.bubble, timeline.peak_in_flight

The instructions are those that the engine runs. A message passes, in no time, once both sides are there: DeepSpeed
waits for every message that it sends. With several parts a stage, messages are collected and pass together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from megaxf.plan.stages import parts_of_stage


class Pass(NamedTuple):
    """One pass of a micro-batch through a part."""

    stage: int
    part: int
    backward: bool
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """One training step of a pipeline."""

    schedule: str
    stages: int
    micro_batches: int
    passes: list[Pass]

    @property
    def length(self) -> float:
        """Time from the first pass to the end of the last."""
        return max(done.end for done in self.passes)

    @property
    def bubble(self) -> float:
        """The share of the stages' time in which they compute nothing."""
        return 1 - sum(done.end - done.start for done in self.passes) / (self.stages * self.length)

    @property
    def one_part_bubble(self) -> float:
        """(p - 1) / (m + p - 1), the least share with one part a stage (arXiv 2104.04473)."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)

    @property
    def peak_in_flight(self) -> list[float]:
        """By stage, the most micro-batches whose activations it holds at a time; in one of two parts, halves."""
        peaks = []
        for stage in range(self.stages):
            own = sorted((done for done in self.passes if done.stage == stage), key=lambda done: done.start)
            held = peak = 0
            for done in own:
                held += -1 if done.backward else 1
                peak = max(peak, held)
            peaks.append(peak / len(parts_of_stage(self.schedule, self.stages, stage)))
        return peaks


Message = tuple[int, int]
"""(from stage, to stage)."""


@dataclass
class _Stage:
    """What the clock knows of one stage."""

    instructions: Iterator[Any]
    time: float = 0.0
    waits: list[tuple[Message, bool, int]] = field(default_factory=list)
    """Messages that have to pass before it goes on: their kind, whether it sends, and their number among such."""
    queued: list[tuple[Message, bool]] = field(default_factory=list)
    """Messages for the next CommitP2P."""
    done: bool = False


def simulate(schedule: str, stages: int, micro_batches: int, forward: float = 1.0, backward: float = 2.0) -> Timeline:
    """The timeline of a schedule.

    schedule: as `parallel.pipeline_schedule`. forward, backward: time of a micro-batch's pass through a whole stage.
    Raises ValueError where the schedule needs more micro-batches, RuntimeError where it never ends.
    """
    return _Clock(schedule, stages, micro_batches, (forward, backward)).run()


def instructions(schedule: str, stages: int, micro_batches: int) -> list[list[Any]]:
    """DeepSpeed's instructions for one training step, by stage."""
    from megaxf.engine.deepspeed_start import import_quietly

    import_quietly(torch.device("cpu"))
    from megaxf.engine.pipeline_schedules import TRAINING

    return [
        [command for step in TRAINING[schedule](micro_batches, stages, stage).steps() for command in step]
        for stage in range(stages)
    ]


class _Clock:
    """Lets every stage go on as long as it can, in turn, until all are done."""

    def __init__(self, schedule: str, stages: int, micro_batches: int, costs: tuple[float, float]) -> None:
        self._timeline = Timeline(schedule, stages, micro_batches, [])
        self._parts = [parts_of_stage(schedule, stages, stage) for stage in range(stages)]
        self._owner = {part: stage for stage, parts in enumerate(self._parts) for part in parts}
        self._costs = costs
        self._stages = [_Stage(iter(commands)) for commands in instructions(schedule, stages, micro_batches)]
        self._collects = len(self._parts[0]) > 1
        self._posted: dict[tuple[Message, bool], list[float]] = defaultdict(list)
        """When each message was ready to pass, on the side that sends (True) and on the one that receives."""
        self._counts: dict[tuple[int, bool], int] = defaultdict(int)

    def run(self) -> Timeline:
        """See `simulate`."""
        while not all(stage.done for stage in self._stages):
            advanced = [self._advance(index, stage) for index, stage in enumerate(self._stages)]
            if not any(advanced):
                waiting = [index for index, stage in enumerate(self._stages) if not stage.done]
                raise RuntimeError(f"{self._timeline.schedule}: stages {waiting} wait for each other")
        return self._timeline

    def _advance(self, index: int, stage: _Stage) -> bool:
        """Whether the stage got further."""
        if stage.done:
            return False
        ready = [self._posted[message, not sends] for message, sends, _ in stage.waits]
        if any(len(times) <= wait[2] for times, wait in zip(ready, stage.waits, strict=True)):
            return False
        stage.time = max([stage.time, *(times[wait[2]] for times, wait in zip(ready, stage.waits, strict=True))])
        stage.waits = []
        command = next(stage.instructions, None)
        if command is None:
            stage.done = True
        elif command.name in ("ForwardPass", "BackwardPass"):
            self._compute(index, stage, command)
        elif command.name.startswith(("Send", "Recv")):
            stage.queued.append(self._message(index, command))
        if not self._collects or (command is not None and command.name == "CommitP2P"):
            self._post(stage)
        return True

    def _compute(self, index: int, stage: _Stage, command: Any) -> None:
        backward = command.name == "BackwardPass"
        part = self._parts[index][getattr(command, "phase", 0)]
        start, batch = stage.time, self._counts[part, backward]
        stage.time += self._costs[backward] / len(self._parts[index])
        self._counts[part, backward] += 1
        self._timeline.passes.append(Pass(index, part, backward, batch, start, stage.time))

    def _message(self, index: int, command: Any) -> tuple[Message, bool]:
        """(from, to) of a message and whether this stage sends it."""
        sends, gradient = command.name.startswith("Send"), command.name.endswith("Grad")
        part = self._parts[index][getattr(command, "phase", 0)]
        peer = self._owner[part + 1 if sends != gradient else part - 1]
        return ((index, peer) if sends else (peer, index)), sends

    def _post(self, stage: _Stage) -> None:
        for message, sends in stage.queued:
            times = self._posted[message, sends]
            stage.waits.append((message, sends, len(times)))
            times.append(stage.time)
        stage.queued = []

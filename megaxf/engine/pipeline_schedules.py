"""The orders in which a pipeline's stages compute and speak, as DeepSpeed's instructions: its own schedules, and ours.

Imports DeepSpeed at its head, so it is imported within functions only, after `import_quietly`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from deepspeed.runtime.pipe.schedule import (
    BackwardPass,
    CommitP2P,
    DualPipeVSchedule,
    ForwardPass,
    LoadMicroBatch,
    OptimizerStep,
    PipeInstruction,
    PipeSchedule,
    RecvActivation,
    RecvGrad,
    ReduceGrads,
    ReduceTiedGrads,
    SendActivation,
    SendGrad,
    TrainSchedule,
)

from megaxf.engine.pipeline_plan import Step, interleaved_plan
from megaxf.plan.stages import parts_of_stage


class PartByPart(PipeSchedule):
    """Forward passes through the two parts of each stage, a part a step, for any number of micro-batches."""

    schedule = "dualpipev"

    def steps(self) -> Iterator[list[PipeInstruction]]:
        """See PipeSchedule."""
        count, last = self.micro_batches, 2 * self.stages - 1
        parts = parts_of_stage(self.schedule, self.stages, self.stage_id)
        for step in range(last + count + 1):
            batches = {phase: step - part for phase, part in enumerate(parts) if 0 <= step - part < count}
            places = {phase: {"buffer_id": phase * count + batch, "phase": phase} for phase, batch in batches.items()}
            yield [
                *(RecvActivation(**at) for phase, at in places.items() if parts[phase] - 1 not in (-1, *parts)),
                CommitP2P(),
                *(LoadMicroBatch(batch) for phase, batch in batches.items() if parts[phase] == 0),
                *(ForwardPass(**at) for at in places.values()),
                *(SendActivation(**at) for phase, at in places.items() if parts[phase] + 1 not in (last + 1, *parts)),
            ]

    def num_pipe_buffers(self) -> int:
        """One a micro-batch and part."""
        return 2 * self.micro_batches


class InterleavedPartByPart(PartByPart):
    """The same where stage r of p holds parts r and p + r."""

    schedule = "interleaved"


class InterleavedSchedule(PipeSchedule):
    """The plan of megaxf.engine.pipeline_plan as instructions; micro_batches is a multiple of stages."""

    def __init__(self, micro_batches: int, stages: int, stage_id: int) -> None:
        super().__init__(micro_batches, stages, stage_id)
        if micro_batches % stages:
            raise ValueError(f"interleaved needs a multiple of {stages} micro-batches, got {micro_batches}")

    def num_pipe_buffers(self) -> int:
        """One a micro-batch and part."""
        return 2 * self.micro_batches

    def steps(self) -> Iterator[list[PipeInstruction]]:
        """See PipeSchedule."""
        plan = interleaved_plan(self.stages, self.micro_batches)
        speak: dict[int, list[PipeInstruction]] = defaultdict(list)
        for step, time in plan.arrivals.items():
            speak[time] += self._messages(step)
        compute = {time: self._compute(step) for step, time in plan.starts.items() if self._is_own(step)}
        for time in sorted(speak.keys() | compute.keys()):
            commit = [CommitP2P()] if speak[time] else []
            yield [*speak[time], *commit, *compute.get(time, [])]
        yield [ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]

    def _is_own(self, step: Step) -> bool:
        return step.part % self.stages == self.stage_id

    def _messages(self, step: Step) -> list[PipeInstruction]:
        """What this stage has to do for the result of a pass to reach the one that takes it."""
        taker = step.taker(self.stages)
        if taker is None or taker.part == step.part:
            return []
        send, receive = (SendGrad, RecvGrad) if step.backward else (SendActivation, RecvActivation)
        sends = [send(**self._place(step))] if self._is_own(step) else []
        return sends + ([receive(**self._place(taker))] if self._is_own(taker) else [])

    def _compute(self, step: Step) -> list[PipeInstruction]:
        if step.backward:
            return [BackwardPass(**self._place(step))]
        load = [LoadMicroBatch(step.batch)] if step.part == 0 else []
        return [*load, ForwardPass(**self._place(step))]

    def _place(self, step: Step) -> dict[str, int]:
        phase = step.part // self.stages
        return {"buffer_id": phase * self.micro_batches + step.batch, "phase": phase}


TRAINING: dict[str, type[PipeSchedule]] = {
    "1f1b": TrainSchedule,
    "interleaved": InterleavedSchedule,
    "dualpipev": DualPipeVSchedule,
}
"""`parallel.pipeline_schedule` -> what is run in a training step; each takes (micro_batches, stages, stage_id)."""

"""What DeepSpeed's pipeline engines take a stage for, built from the mesh and from our model.

Imports DeepSpeed at its head, so it is imported within functions only, after `import_deepspeed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine, DualPipeVModule
from deepspeed.runtime.pipe.engine import PipelineEngine

from megaxf.engine.mpu import ModelParallelUnit


class Grid(ModelParallelUnit):
    """DeepSpeed's grid of ranks, in any order of our axes.

    The model-parallel ranks are here those of a pipeline, with all their tensor-parallel ranks: DeepSpeed sums the
    square of the gradient norm over them.
    """

    @property
    def pipe_parallel_size(self) -> int:
        """The number of stages."""
        return self.mesh.axis("pipeline").size

    @property
    def data_parallel_size(self) -> int:
        """The number of pipelines, per tensor-parallel rank."""
        return self.mesh.replicas.size

    @property
    def data_parallel_id(self) -> int:
        """Which pipeline this rank belongs to."""
        return self.mesh.replicas.rank

    @property
    def model_parallel_size(self) -> int:
        """Tensor-parallel ranks of a stage."""
        return self.mesh.axis("tensor").size

    @property
    def pp_group(self) -> tuple[int, ...]:
        """The ranks of this pipeline, by stage."""
        return self.mesh.axis("pipeline").ranks

    def get_stage_id(self) -> int:
        """The stage of this rank."""
        return self.mesh.axis("pipeline").rank

    def get_global_rank(self) -> int:
        """This rank in the world."""
        return self.mesh.rank

    def stage_to_global(self, stage_id: int) -> int:
        """The rank of another stage of this pipeline."""
        return self.pp_group[stage_id]

    def get_pipe_parallel_group(self) -> Any:
        """The stages of this pipeline."""
        return self.mesh.axis("pipeline").group

    def get_model_parallel_group(self) -> Any:
        """The ranks that hold one copy of the weights together."""
        return self.mesh.parts.group

    def get_model_parallel_world_size(self) -> int:
        """Their number."""
        return self.mesh.parts.size

    def get_model_parallel_rank(self) -> int:
        """Place of this rank among them."""
        return self.mesh.parts.rank

    def get_tensor_model_parallel_rank(self) -> int:
        """Place of this rank within its stage."""
        return self.mesh.axis("tensor").rank

    def get_tensor_model_parallel_world_size(self) -> int:
        """Ranks of a stage."""
        return self.mesh.axis("tensor").size


class Stage(DualPipeVModule):
    """The parts of the model that a stage computes, each a callable on hidden states, under the engine's names.

    DeepSpeed's own constructor would cut a list of layers itself, make process groups of its own for every axis, and
    read environment variables.
    """

    def __init__(self, grid: Grid, model: torch.nn.Module, parts: Sequence[Callable[[torch.Tensor], torch.Tensor]]):
        torch.nn.Module.__init__(self)
        self.model, self.parts, self._phase = model, parts, 0
        self._grid, self.loss_fn = grid, None
        self.tied_comms: dict[str, Any] = {}
        self.activation_checkpoint_interval, self.activation_checkpoint_func = 0, None
        self.dynamic_shape, self._local_start, self._local_stop = False, 0, len(parts)

    def activate_phase(self, phase: int) -> None:
        """Choose the part that `forward` runs."""
        self._phase = phase

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the previous part -> those of this one, or the loss."""
        return self.parts[self._phase](hidden)


class _SumsTiedGradients:
    """Has the engine do what it is told where its schedule sums the gradients of tied weights."""

    sum_tied_gradients: Callable[[], None]

    def _exec_reduce_tied_grads(self) -> None:
        self.sum_tied_gradients()


class OneForwardOneBackward(_SumsTiedGradients, PipelineEngine):
    """Schedule 1f1b: a backward pass as soon as one can be made (arXiv 2006.09503)."""

    _INSTRUCTION_MAP = {
        **PipelineEngine._INSTRUCTION_MAP,
        schedule.ReduceTiedGrads: _SumsTiedGradients._exec_reduce_tied_grads,
    }


class DualPipeV(_SumsTiedGradients, DualPipeVEngine):
    """Schedule dualpipev: two parts a stage, there and back (arXiv 2412.19437)."""

    _INSTRUCTION_MAP = {
        **DualPipeVEngine._INSTRUCTION_MAP,
        schedule.ReduceTiedGrads: _SumsTiedGradients._exec_reduce_tied_grads,
    }

    def _inference_schedule(self, micro_batches: int) -> schedule.PipeSchedule:
        return ThereAndBack(micro_batches, self.num_stages, self.stage_id)


class ThereAndBack(schedule.PipeSchedule):
    """Forward passes through the parts of DualPipeV for any number of micro-batches: each takes a step a part.

    DeepSpeed's own needs two micro-batches a stage.
    """

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        """See PipeSchedule."""
        last = self.stages - 1
        stops = {0: self.stage_id, 1: 2 * self.stages - 1 - self.stage_id}
        for step in range(2 * self.stages + self.micro_batches):
            here = {phase: step - stop for phase, stop in stops.items() if 0 <= step - stop < self.micro_batches}
            buffers = {phase: phase * self.micro_batches + batch for phase, batch in here.items()}
            starts, ends = (
                {0: self.is_first_stage, 1: self.stage_id == last},
                {0: self.stage_id == last, 1: self.is_first_stage},
            )
            yield [
                *(
                    schedule.RecvActivation(buffer, phase=phase)
                    for phase, buffer in buffers.items()
                    if not starts[phase]
                ),
                schedule.CommitP2P(),
                *(
                    schedule.LoadMicroBatch(buffer)
                    for phase, buffer in buffers.items()
                    if self.is_first_stage and phase == 0
                ),
                *(schedule.ForwardPass(buffer, phase=phase) for phase, buffer in buffers.items()),
                *(schedule.SendActivation(buffer, phase=phase) for phase, buffer in buffers.items() if not ends[phase]),
            ]

    def num_pipe_buffers(self) -> int:
        """One a micro-batch and part."""
        return 2 * self.micro_batches

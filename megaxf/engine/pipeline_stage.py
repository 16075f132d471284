"""What DeepSpeed's pipeline engines take a stage for, built from the mesh and from our model.

Imports DeepSpeed at its head, so it is imported within functions only, after `import_deepspeed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine, DualPipeVModule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import BackwardPass, OptimizerStep

from megaxf.engine.mpu import ModelParallelUnit
from megaxf.engine.pipeline_schedules import InterleavedPartByPart, InterleavedSchedule, PartByPart
from megaxf.parallel.clock import BACKWARD, OPTIMIZER, Clock


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
    """The parts of the model that a stage computes, each a callable on hidden states; DeepSpeed calls them phases.

    sum_tied_gradients: called by the schedule where the gradients of tied weights are summed.

    DeepSpeed's own constructor would cut a list of layers itself, make process groups of its own for every axis, and
    read environment variables.
    """

    def __init__(
        self,
        grid: Grid,
        model: torch.nn.Module,
        parts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        sum_tied_gradients: Callable[[], None],
    ) -> None:
        torch.nn.Module.__init__(self)
        self._sum_tied_gradients = sum_tied_gradients
        self.model, self.parts, self._phase = model, parts, 0
        self._grid, self.loss_fn = grid, None
        self.tied_comms: dict[str, Any] = {}
        self.activation_checkpoint_interval, self.activation_checkpoint_func = 0, None
        self.dynamic_shape, self._local_start, self._local_stop = False, 0, len(parts)

    def activate_phase(self, phase: int) -> None:
        """Choose the part that `forward` runs."""
        self._phase = phase

    def get_tied_weights_and_groups(self) -> list[Any]:
        """Asked by DeepSpeed when it is to sum the gradients of tied weights: they are summed, and none is left."""
        self._sum_tied_gradients()
        return []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the previous part -> those of this one, or the loss."""
        return self.parts[self._phase](hidden)


class DualPipeV(DualPipeVEngine):
    """DeepSpeed's engine for two parts a stage, which also evaluates fewer micro-batches than two a stage."""

    def _inference_schedule(self, micro_batches: int) -> PartByPart:
        return PartByPart(micro_batches, self.num_stages, self.stage_id)


class Interleaved(DualPipeVEngine):
    """The same with the second parts in the order of the first: the last stage sends to the first between them."""

    def is_last_stage(self) -> bool:
        """Whether the loss is computed here: on the last rank, in its second part."""
        return PipelineEngine.is_last_stage(self) and self._active_phase != 0

    def _is_loss_stage(self, phase: int) -> bool:
        return PipelineEngine.is_last_stage(self) and phase == 1

    def _is_last_rank(self) -> bool:
        """Asked where hidden states stay on a rank between its parts, which they never do."""
        return False

    def _loss_stage_global_rank(self) -> int:
        return PipelineEngine._loss_stage_global_rank(self)

    def _downstream_stage(self, phase: int) -> int:
        return (self.stage_id + 1) % self.num_stages

    def _upstream_stage(self, phase: int) -> int:
        return (self.stage_id - 1) % self.num_stages

    def _train_schedule(self) -> InterleavedSchedule:
        return InterleavedSchedule(self.micro_batches, self.num_stages, self.stage_id)

    def _inference_schedule(self, micro_batches: int) -> InterleavedPartByPart:
        return InterleavedPartByPart(micro_batches, self.num_stages, self.stage_id)


def watch_instructions(engine: Any, clock: Clock, device: torch.device, before_update: Callable[[], None]) -> None:
    """Let the clock count what the engine's instructions do; forward passes count themselves."""

    def timed(instruction: Callable[..., None], part: str) -> Callable[..., None]:
        def run(self: Any, **arguments: Any) -> None:
            if part == OPTIMIZER:
                before_update()
            with clock.part(part, device):
                instruction(self, **arguments)

        return run

    plain = engine._INSTRUCTION_MAP
    parts = {BackwardPass: BACKWARD, OptimizerStep: OPTIMIZER}
    engine._INSTRUCTION_MAP = plain | {kind: timed(plain[kind], part) for kind, part in parts.items()}


ENGINES = {"1f1b": PipelineEngine, "interleaved": Interleaved, "dualpipev": DualPipeV}
"""`parallel.pipeline_schedule` -> the engine that runs it."""

"""DeepSpeed's ZeRO stages 1 to 3 behind the engine protocol (arXiv 1910.02054).

What DeepSpeed does that had to be known:
- It averages gradients over data and context ranks, so the loss is multiplied by their number; its own division by the
  number of micro-batches is switched off.
- A gradient that is not finite makes no update; the norm is reported as infinite. The reference engine does the same.
- It keeps optimizer state per flat partition of a parameter group and finds a parameter's share of it through a link
  made in the first step, before the state of the second group exists. State and links are made here at the start.
- Under ZeRO 3 a parameter has one dimension, and on a disk one element: what depends on its shape asks `placed.shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.batch import TorchBatch
from megaxf.engine.deepspeed_config import deepspeed_config
from megaxf.engine.deepspeed_messages import timed_messages
from megaxf.engine.deepspeed_start import Partition, import_deepspeed
from megaxf.engine.loss_scale import LossScale
from megaxf.engine.mpu import ModelParallelUnit
from megaxf.engine.objective import Objective, Sums, evaluation_mode, idle_rows, several_sources
from megaxf.engine.offload import check_nvme
from megaxf.engine.optimizer import CountsUpdates, build_adamw, fresh_state, set_learning_rate
from megaxf.engine.protocol import GRADIENT, MOMENTS, SeeGradient, StepResult
from megaxf.engine.state import pieces_of
from megaxf.parallel.apply import Placed, is_counted, materialise
from megaxf.parallel.boxes import Piece
from megaxf.parallel.clock import BACKWARD, OPTIMIZER


class ZeroEngine(CountsUpdates):
    """See megaxf.engine.protocol.Engine."""

    def __init__(self, run: Run[Any], placed: Placed, device: torch.device) -> None:
        deepspeed = import_deepspeed(device)
        self._placed, self._axis, self._device = placed, placed.mesh.replicas, device
        self._stage, self._sources = run.engine.zero_stage, several_sources(run)
        self._loss_scale = LossScale() if run.train.precision == "fp16" else None
        check_nvme(run, placed)
        config = deepspeed_config(run, placed, device)
        unit = ModelParallelUnit(placed.mesh)
        self._objective = Objective(placed, run.train.z_loss)
        if self._stage == 3:
            materialise(placed, run.seed, device, after=Partition(deepspeed, config, unit, run.train.precision))
            for layer in placed.model.layers:
                # Fetched in one message: its modules use each other's weights.
                deepspeed.utils.set_z3_leaf_module(layer, True)
            # Read outside of the submodule that owns it, so ZeRO has to be told to fetch it for the loss.
            deepspeed.zero.register_external_parameter(self._objective, placed.model.head_weight())
        else:
            materialise(placed, run.seed, device)
        self._weights = placed.weights
        for name in is_counted(placed, self._weights):
            self._weights[name].tensor_model_parallel = True  # type: ignore[attr-defined]
        self._optimizer = build_adamw(self._weights, run.optimizer, placed.shapes)
        groups = [list(group["params"]) for group in self._optimizer.param_groups]
        with redirect_stdout(StringIO()):  # it prints the memory in use at every turn
            self._zero, *_ = deepspeed.initialize(
                model=self._objective,
                optimizer=self._optimizer,
                config=config,
                mpu=unit,
                dist_init_required=False,
            )
        self._make_optimizer_state(groups)
        self._set_loss_scale()

    def train_step(
        self,
        micro_batches: Sequence[TorchBatch],
        learning_rate: float,
        loss_limit: float | None = None,
        see_gradient: SeeGradient | None = None,
    ) -> StepResult:
        """One update; see the protocol."""
        batches = [self._placed.columns(batch) for batch in micro_batches]
        idle = idle_rows(self._placed, micro_batches)
        sums = Sums(batches, idle, self._axis, self._device, loss_limit, self._sources)
        set_learning_rate(self._optimizer, learning_rate)
        clock = self._placed.mesh.clock
        with timed_messages(clock, self._device):
            for index, batch in enumerate(batches):
                self._zero.set_gradient_accumulation_boundary(index == len(batches) - 1)
                loss = sums.add(batch, *self._zero(batch))
                with clock.part(BACKWARD, self._device):
                    self._zero.backward(loss * (sums.scale * self._axis.size), scale_wrt_gas=False)
            if see_gradient:
                see_gradient(self._gradient_pieces())
            with clock.part(OPTIMIZER, self._device):
                self._zero.step()
        return self._result(sums)

    def _result(self, sums: Sums) -> StepResult:
        """The numbers of the step that DeepSpeed has just made or skipped, which is counted; collective."""
        applied = self._zero.was_step_applied()
        self._optimizer_step += applied
        result = sums.result(float(self._zero.get_global_grad_norm()))
        if self._loss_scale is not None and not result.refused:
            result = result._replace(skipped=self._loss_scale.update(overflowed=not applied))
        self._set_loss_scale()
        return result

    def _set_loss_scale(self) -> None:
        if self._loss_scale is not None:
            self._zero.optimizer.override_loss_scale(self._loss_scale.value)

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """Local sum and count; see the protocol."""
        batch = self._placed.columns(batch)
        with evaluation_mode(self._zero):
            return float(self._zero(batch)[1].sum()), batch.counted()

    def state_shapes(self) -> dict[str, torch.Size]:
        """See the protocol."""
        return self._placed.shapes

    def pieces(self) -> Iterator[Piece]:
        """See the protocol."""
        yield from self._partitions() if self._stage == 3 else self._fragments()

    def _fragments(self) -> Iterator[Piece]:
        """Of stages 1 and 2: a range of the flat parameter group, that begins and ends anywhere in a parameter."""
        for name, weight in self._weights.items():
            fragment: Any = weight._hp_mapping  # type: ignore[attr-defined]
            if fragment is not None:
                tensors = {
                    "master": fragment.hp_fragment.detach(),
                    **{key: fragment.optim_fragment[key] for key in MOMENTS},
                }
                yield from pieces_of(self._placed, name, fragment.lp_fragment_address.start, tensors)

    def _partitions(self) -> Iterator[Piece]:
        """Of stage 3: an equal range of every parameter, the last one padded."""
        zero, names = self._zero.optimizer, {id(weight): name for name, weight in self._weights.items()}
        for index, weights in enumerate(zero.fp16_groups):
            with self._from_nvme(index):
                master = zero.fp32_partitioned_groups_flat[index]
                tensors = {"master": master.detach(), **{key: self._optimizer.state[master][key] for key in MOMENTS}}
                for weight in weights:
                    _, place, size = zero.grad_position[zero.get_param_id(weight)]
                    own = {part: tensor.narrow(0, place, size) for part, tensor in tensors.items()}
                    yield from pieces_of(self._placed, names[id(weight)], self._axis.rank * size, own)

    def _gradient_pieces(self) -> Iterator[Piece]:
        """Between the last backward pass of a step and its update."""
        from deepspeed.utils import safe_get_local_grad

        scale = self._loss_scale.value if self._loss_scale else 1.0
        for name, weight in self._weights.items():
            if self._stage == 3:
                gradient = safe_get_local_grad(weight).view(-1)
                start = self._axis.rank * gradient.numel()
            else:
                fragment: Any = weight._hp_mapping  # type: ignore[attr-defined]
                if fragment is None:
                    continue
                start, size = fragment.lp_fragment_address.start, fragment.lp_fragment_address.numel
                gradient = fragment.get_lp_grad_fragment(weight._index_in_param_group).view(-1)  # type: ignore[attr-defined]
                if gradient.numel() > size:  # in bf16 with a pipeline, where each rank has all of it
                    gradient = gradient.narrow(0, start, size)
            yield from pieces_of(self._placed, name, start, {GRADIENT: gradient.float() / scale})

    def _refresh(self) -> None:
        zero = self._zero.optimizer
        self._set_loss_scale()
        if self._stage < 3:
            zero.update_lp_params()
            return
        for index in range(len(zero.fp16_groups)):
            with self._from_nvme(index):
                zero._reassign_or_swap_out_partitioned_parameters(index)

    def replicated(self) -> dict[str, torch.Tensor]:
        """See the protocol: the weights computed with; nothing at stage 3, where no rank keeps what others hold."""
        return {} if self._stage == 3 else dict(self._placed.weights)

    @contextmanager
    def model_for_inference(self) -> Iterator[torch.nn.Module]:
        """See the protocol."""
        with self._whole(list(self._weights.values())), evaluation_mode(self._objective):
            yield self._objective.model

    @contextmanager
    def _whole(self, weights: list[torch.nn.Parameter]) -> Iterator[None]:
        """Weights in full on every rank, to be read."""
        import deepspeed

        with deepspeed.zero.GatheredParameters(weights, enabled=self._stage == 3):
            yield

    def _make_optimizer_state(self, groups: list[list[torch.nn.Parameter]]) -> None:
        """Moments of zero for the flat partitions that ZeRO put in the place of `groups`, linked to the parameters."""
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        if self._stage == 3:
            for index, flat in enumerate(self._zero.optimizer.fp32_partitioned_groups_flat):
                with self._from_nvme(index):
                    self._optimizer.state[flat] = fresh_state(flat)
            return
        for weights, group in zip(groups, self._optimizer.param_groups, strict=True):
            (flat,) = group["params"]
            self._optimizer.state[flat] = fresh_state(flat)
            lazy_init_hp_params_optimizer_state(weights, flat, self._optimizer.state)

    @contextmanager
    def _from_nvme(self, group: int) -> Iterator[None]:
        """A flat partition of ZeRO 3 and its state in memory, and back again to where they are offloaded."""
        zero = self._zero.optimizer
        swapped = zero._swappable_optimizer_subgroup(group)
        if swapped:
            zero._optimizer_states_and_gradient_swap_in(group)
        yield
        if swapped:
            zero._optimizer_states_and_gradient_swap_out(group)

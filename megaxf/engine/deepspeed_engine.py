"""DeepSpeed's ZeRO stages 1 to 3 behind the engine protocol (arXiv 1910.02054).

The only file that imports DeepSpeed, and it does so inside functions: the import takes seconds.

What DeepSpeed does that had to be known:
- It averages gradients over the data axis, so the loss is multiplied by its size; its own division by the number of
  micro-batches is switched off.
- A gradient that is not finite makes no update; the norm is reported as infinite. The reference engine does the same.
- Optimizer state does not exist before the first step and can only be written once it does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from megaxf.config import Run
from megaxf.engine.batch import IGNORED, TorchBatch
from megaxf.engine.deepspeed_config import deepspeed_config
from megaxf.engine.objective import Objective, Sums, evaluation_mode
from megaxf.engine.optimizer import build_adamw, set_learning_rate
from megaxf.engine.protocol import MOMENTS, StepResult
from megaxf.parallel.mesh import Mesh


class ZeroEngine:
    """See megaxf.engine.protocol.Engine."""

    def __init__(self, run: Run[Any], model: torch.nn.Module, mesh: Mesh, device: torch.device) -> None:
        deepspeed = _import_deepspeed(device)
        self._axis, self._device = mesh.axis("data"), device
        self._blank = _blank_batch(run, device)
        self._stage = run.engine.zero_stage
        self._weights = dict(model.named_parameters())
        self._optimizer = build_adamw(self._weights, run.optimizer)
        elements = sum(weight.numel() for weight in self._weights.values())
        self._objective = Objective(model, run.train.z_loss)
        if self._stage == 3:
            # Read outside of the submodule that owns it, so ZeRO has to be told to fetch it for the loss.
            deepspeed.zero.register_external_parameter(self._objective, model.head_weight())
        self._zero, *_ = deepspeed.initialize(
            model=self._objective,
            optimizer=self._optimizer,
            config=deepspeed_config(run, self._axis.size, elements),
            dist_init_required=False,
        )
        self._optimizer_step = 0

    def train_step(self, micro_batches: Sequence[TorchBatch], learning_rate: float) -> StepResult:
        """One update; see the protocol."""
        sums = Sums(micro_batches, self._axis, self._device)
        set_learning_rate(self._optimizer, learning_rate)
        for index, batch in enumerate(micro_batches):
            self._zero.set_gradient_accumulation_boundary(index == len(micro_batches) - 1)
            loss, nll = self._zero(batch)
            self._zero.backward(loss * (sums.scale * self._axis.size), scale_wrt_gas=False)
            sums.add(loss, nll)
        self._zero.step()
        self._optimizer_step += self._zero.was_step_applied()
        return sums.result(float(self._zero.get_global_grad_norm()))

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """Local sum and count; see the protocol."""
        with evaluation_mode(self._zero):
            return float(self._zero(batch)[1]), batch.counted()

    def state_names(self) -> list[str]:
        """See the protocol."""
        return list(self._weights)

    def state_shapes(self) -> dict[str, torch.Size]:
        """See the protocol."""
        return {name: getattr(weight, "ds_shape", weight.shape) for name, weight in self._weights.items()}

    def read_state(self, name: str) -> dict[str, torch.Tensor]:
        """See the protocol."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        weight = self._weights[name]
        tensors = {"master": safe_get_full_fp32_param(weight)}
        if self._optimizer_step:
            tensors |= {key: safe_get_full_optimizer_state(weight, key) for key in MOMENTS}
        return {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}

    def write_state(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """See the protocol."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        weight = self._weights[name]
        if MOMENTS[0] in tensors and not self._optimizer.state:
            self._make_optimizer_state()
        safe_set_full_fp32_param(weight, tensors["master"].to(self._device))
        if self._optimizer.state:
            for key in MOMENTS:
                value = tensors.get(key, torch.zeros_like(tensors["master"]))
                safe_set_full_optimizer_state(weight, value.to(self._device), key)
        with self._whole([weight], writing=True), torch.no_grad():
            weight.copy_(tensors["master"])

    @property
    def optimizer_step(self) -> int:
        """Updates made so far."""
        return self._optimizer_step

    @optimizer_step.setter
    def optimizer_step(self, step: int) -> None:
        self._optimizer_step = step
        for state in self._optimizer.state.values():
            state["step"].fill_(step)

    @contextmanager
    def model_for_inference(self) -> Iterator[torch.nn.Module]:
        """See the protocol."""
        with self._whole(list(self._weights.values())), evaluation_mode(self._objective):
            yield self._objective.model

    @contextmanager
    def _whole(self, weights: list[torch.nn.Parameter], writing: bool = False) -> Iterator[None]:
        """Weights in full on every rank; what is written has to be the same on all."""
        import deepspeed

        writer = 0 if writing else None
        with deepspeed.zero.GatheredParameters(weights, modifier_rank=writer, enabled=self._stage == 3):
            yield

    def _make_optimizer_state(self) -> None:
        """Bring the moments into being: a step at rate 0 with no counted target changes nothing."""
        self.train_step([self._blank], learning_rate=0.0)
        self.optimizer_step = 0


def _import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, without its chatter, told which device it works on; raises RuntimeError without a process group."""
    if not dist.is_initialized():
        raise RuntimeError("engine.zero_stage > 0 needs torch.distributed, also for one process: start it before")
    logging.getLogger("DeepSpeed").addFilter(_is_error)
    import deepspeed
    from deepspeed.accelerator import get_accelerator, set_accelerator

    if device.type == "cpu" and get_accelerator().device_name() != "cpu":
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        set_accelerator(CPU_Accelerator())
    return deepspeed


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _blank_batch(run: Run[Any], device: torch.device) -> TorchBatch:
    """A micro-batch of the run's shape without a counted target."""
    tokens = torch.zeros(run.train.micro_batch_size, run.data.sequence_length, dtype=torch.int64, device=device)
    places = tokens if run.data.isolate_documents else None
    return TorchBatch(tokens, torch.full_like(tokens, IGNORED), places, places)

"""DeepSpeed's pipeline engines behind the engine protocol, with ZeRO 1.

Every rank of a pipeline reads the same rows, so only hidden states travel: each part of the model takes rotary tables,
masks, labels and dropout keys from its own copy of the micro-batch. DeepSpeed's schedules run a part's forward passes
in the order of the micro-batches.

A table that is tied over stages belongs to the first one, its optimizer state and its place in the gradient norm too.
The last stage borrows it: it sends its gradient before the update and takes the new table after it. So the copies are
equal bit by bit whatever the ranks' order of summation.

What DeepSpeed does that had to be known, beside what megaxf.engine.deepspeed_engine says:
- It divides the loss by the number of micro-batches of the configuration, and the loss is multiplied by that.
- It sums the norm of each parameter group over the pipeline, so every stage needs as many groups as the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist

from megaxf.config import Run
from megaxf.engine.batch import TorchBatch
from megaxf.engine.deepspeed_config import deepspeed_config
from megaxf.engine.deepspeed_engine import ZeroEngine
from megaxf.engine.deepspeed_messages import timed_messages
from megaxf.engine.deepspeed_start import DTYPES, import_deepspeed
from megaxf.engine.gradient import Gradients
from megaxf.engine.objective import Sums, evaluation_mode, idle_rows, several_sources, taken_apart
from megaxf.engine.optimizer import build_adamw, set_learning_rate
from megaxf.engine.protocol import SeeGradient, StepResult
from megaxf.engine.state import read_whole
from megaxf.parallel.apply import Placed, blank_model, is_counted, materialise
from megaxf.parallel.clock import FORWARD
from megaxf.parallel.collectives import sum_numbers
from megaxf.parallel.pipeline import layers_of_parts
from megaxf.plan.stages import Part, split_layers

Finish = Callable[[TorchBatch, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(micro-batch, what `taken_apart` gives) -> what DeepSpeed takes for the loss."""


class LocalPart:
    """A part of the model with its own copy of the micro-batches, one of which each call takes."""

    def __init__(self, placed: Placed, part: Part, layers: list[torch.nn.Module], z_loss: float) -> None:
        self._placed, self._part, self._layers, self._z_loss = placed, part, layers, z_loss
        self._batches: Iterator[TorchBatch] = iter(())
        self._finish: Finish = lambda batch, loss, nll, z_loss: loss

    def start(self, batches: Sequence[TorchBatch], finish: Finish) -> None:
        """Set what the next calls compute on."""
        self._batches, self._finish = iter(batches), finish

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [batch, seq, hidden] of the part before, if there is one -> those of this one, or the loss."""
        batch = next(self._batches)
        with self._placed.mesh.clock.part(FORWARD, batch.tokens.device):
            return self._compute(hidden, batch)

    def _compute(self, hidden: torch.Tensor, batch: TorchBatch) -> torch.Tensor:
        model = self._placed.model
        shared = model.shared(
            batch.tokens, document_ids=batch.document_ids, positions=batch.positions, samples=batch.samples
        )
        if self._part.first:
            hidden = model.embed(batch.tokens, shared)
        for layer in self._layers:
            hidden = layer(hidden, shared)
        if not self._part.last:
            return hidden
        hidden = model.final_norm(hidden)
        losses = self._placed.loss(hidden, model.head_weight(), batch.labels, z_loss=self._z_loss)
        return self._finish(batch, *taken_apart(*losses))


class PipelineEngine(ZeroEngine):
    """See megaxf.engine.protocol.Engine."""

    def __init__(self, run: Run[Any], placed: Placed, device: torch.device) -> None:
        import_deepspeed(device)
        self._run, self._placed, self._axis, self._device, self._stage = run, placed, placed.mesh.replicas, device, 1
        self._loss_scale, self._pipeline = None, placed.mesh.axis("pipeline")
        self._sources = several_sources(run)
        materialise(placed, run.seed, device)
        own = {name: weight for name, weight in placed.weights.items() if self._owner(name) == self._pipeline.rank}
        for name in is_counted(placed, own):
            own[name].tensor_model_parallel = True  # type: ignore[attr-defined]
        self._weights = own
        self._tied = [name for name, stages in placed.stages.items() if len(stages) > 1]
        self._borrowed = {name: weight for name, weight in placed.weights.items() if name not in own}
        self._borrowed_gradients = Gradients(self._borrowed)
        self._optimizer = build_adamw(own, run.optimizer, placed.shapes)
        groups = [list(group["params"]) for group in self._optimizer.param_groups]
        parts = split_layers(run)[self._pipeline.rank]
        layers = layers_of_parts(placed.model, parts)
        self._parts = [LocalPart(placed, part, own, run.train.z_loss) for part, own in zip(parts, layers, strict=True)]
        self._shape: torch.Size | None = None
        self._see_gradient: SeeGradient | None = None
        with redirect_stdout(StringIO()):
            self._zero = self._build()
        self._make_optimizer_state(groups)

    def _build(self) -> Any:
        """DeepSpeed's engine, made as `deepspeed.initialize` makes it, which would choose its class by the module's."""
        from deepspeed import init_distributed
        from deepspeed.runtime.config import DeepSpeedConfig

        from megaxf.engine import pipeline_stage

        init_distributed(dist_init_required=False)
        grid = pipeline_stage.Grid(self._placed.mesh)
        # Messages cut over tensor-parallel ranks have to be gathered again; sequence parallelism has them cut anyway.
        whole = {"pipe_partitioned": False, "grad_partitioned": False}
        config = deepspeed_config(self._run, self._placed, self._device) | {"pipeline": whole}
        # DeepSpeed asks for two a stage where a stage has two parts. It only divides the loss by this number here: how
        # many there are is said before each step.
        config["gradient_accumulation_steps"] = 2 * self._pipeline.size
        made = pipeline_stage.ENGINES[self._run.parallel.pipeline_schedule](
            args=None,
            model=pipeline_stage.Stage(grid, self._placed.model, self._parts, self._sum_tied_gradients),
            optimizer=self._optimizer,
            mpu=grid,
            dist_init_required=False,
            config=config,
            config_class=DeepSpeedConfig(config, grid),
        )
        pipeline_stage.watch_instructions(made, self._placed.mesh.clock, self._device, self._before_update)
        return made

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
        factor = sums.scale * self._axis.size * self._zero.gradient_accumulation_steps()

        def finish(batch: TorchBatch, loss: torch.Tensor, nll: torch.Tensor, z_loss: torch.Tensor) -> torch.Tensor:
            return sums.add(batch, loss, nll, z_loss) * factor

        self._borrowed_gradients.clear()
        self._start(batches, finish)
        self._see_gradient = see_gradient
        with timed_messages(self._placed.mesh.clock, self._device):
            self._zero.train_batch(self._nothing())
        self._lend_tied_weights()
        sums.share(self._pipeline)
        return self._result(sums)

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """Local sum and count; see the protocol."""
        batch = self._placed.columns(batch)
        sums: list[torch.Tensor] = []

        def finish(batch: TorchBatch, loss: torch.Tensor, nll: torch.Tensor, z_loss: torch.Tensor) -> torch.Tensor:
            sums.append(nll.sum())
            return sums[-1]

        self._start([batch], finish)
        with evaluation_mode(self._zero):
            self._zero.eval_batch(self._nothing(), compute_loss=False, reduce_output=None)
        return sum_numbers([sum(sums)], self._pipeline, self._device)[0], batch.counted()

    def _start(self, batches: Sequence[TorchBatch], finish: Finish) -> None:
        """Lay the micro-batches out before the parts."""
        for part in self._parts:
            part.start(batches, finish)
        self._zero.micro_batches = len(batches)
        if batches[0].tokens.shape != self._shape:
            self._shape = batches[0].tokens.shape
            self._zero.reset_activation_shape()

    def _nothing(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What DeepSpeed takes for inputs and labels: the parts have their own."""
        empty = torch.empty(0, device=self._device)
        return repeat((empty, empty))

    def _before_update(self) -> None:
        if self._see_gradient:
            self._see_gradient(self._gradient_pieces())

    def _owner(self, name: str) -> int:
        return self._placed.stages[name][0]

    def _sum_tied_gradients(self) -> None:
        """Add the gradients of borrowed weights to the owners' fp32 sums; collective along the pipeline."""
        for name in self._tied:
            owner, borrower = self._placed.stages[name]
            if self._pipeline.rank == borrower:
                self._send(self._borrowed_gradients.sums[name].float().contiguous(), owner)
            elif self._pipeline.rank == owner:
                weight: Any = self._weights[name]
                bf16 = self._zero.using_bf16_optimizer
                total = weight._hp_grad if bf16 else self._zero.optimizer.get_gradient_for_reduction(weight)
                received = torch.empty_like(total, dtype=torch.float32)
                self._receive(received, borrower)
                total.add_(received)

    @torch.no_grad()
    def _lend_tied_weights(self) -> None:
        """Bring the borrowed weights up to their owners'; collective along the pipeline."""
        for name in self._tied:
            owner, borrower = self._placed.stages[name]
            if self._pipeline.rank == owner:
                self._send(self._weights[name].detach(), borrower)
            elif self._pipeline.rank == borrower:
                self._receive(self._borrowed[name].detach(), owner)

    def _send(self, tensor: torch.Tensor, stage: int) -> None:
        with self._pipeline.message(self._device):
            dist.send(tensor, self._pipeline.ranks[stage], group=self._pipeline.group)

    def _receive(self, tensor: torch.Tensor, stage: int) -> None:
        with self._pipeline.message(self._device):
            dist.recv(tensor, self._pipeline.ranks[stage], group=self._pipeline.group)

    def _refresh(self) -> None:
        super()._refresh()
        self._lend_tied_weights()

    @contextmanager
    def model_for_inference(self) -> Iterator[torch.nn.Module]:
        """See the protocol."""
        model = blank_model(self._run).to(DTYPES[self._run.train.precision]).to_empty(device=self._device)
        whole = read_whole(self, self._placed.mesh, self._device, ("master",))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(whole[name]["master"])
        with evaluation_mode(model):
            yield model

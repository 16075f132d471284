"""The settings of a run that decide what one of its ranks holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megaxf.plan.parameters import Shape
from megaxf.plan.stages import Part, in_flight, split_layers


@dataclass(frozen=True)
class Job:
    """One rank of a run. The ranks of a tensor, data or context axis hold equally much: only the stage matters.

    Fields that a run has too are named and explained as there.
    """

    shape: Shape
    sequence_length: int
    micro_batch_size: int
    parts: tuple[Part, ...]
    """What the rank's pipeline stage computes."""
    held: tuple[int, ...] = (1,)
    """The most micro-batches of which each part keeps activations at one time."""
    micro_batches: int = 1
    """Forward passes of a rank in one step."""
    precision: str = "bf16"
    recompute: str = "none"
    recompute_every: int = 1
    dropout: float = 0.0
    attention_backend: str = "sdpa"
    isolate_documents: bool = False
    compile: bool = False
    tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    replicas: int = 1
    """Data x context: the ranks that hold the same weights."""
    zero_stage: int = 0
    offload_optimizer: str = "none"
    offload_parameters: str = "none"
    device: str = "cuda"
    """"cpu" or "cuda": it decides how large a chunk of logits is."""

    @property
    def element(self) -> int:
        """Bytes of a weight and of an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch_size * self.sequence_length // self.context_parallel_size

    @property
    def shared_tokens(self) -> int:
        """Of these, those whose residual stream the rank holds."""
        return self.tokens // self.tensor_parallel_size if self.sequence_parallel else self.tokens

    @property
    def masked(self) -> bool:
        """Whether attention takes a mask: documents are kept apart, or the window is shorter than the row."""
        window = self.shape.sliding_window
        return self.isolate_documents or (window is not None and window < self.sequence_length)

    @property
    def has_embedding(self) -> bool:
        """Whether the model begins on this rank."""
        return any(part.first for part in self.parts)

    @property
    def has_head(self) -> bool:
        """Whether the model ends on this rank, and the loss is made there."""
        return any(part.last for part in self.parts)

    @property
    def communicators(self) -> int:
        """Groups of ranks that this one exchanges tensors with."""
        sizes = (self.tensor_parallel_size, self.context_parallel_size, self.replicas, self.pipeline_parallel_size)
        return sum(size > 1 for size in sizes)

    def recompute_of(self, layer: int) -> str:
        """What the backward pass of that layer makes again."""
        return "none" if layer % self.recompute_every else self.recompute


def jobs(run: Any, world_size: int, device: str = "cuda") -> list[Job]:
    """The job of each pipeline stage of a megaxf.config.Run over `world_size` ranks, which the run has to fit."""
    train, parallel, engine = run.train, run.parallel, run.engine
    data_size, stages = parallel.data_parallel_size(world_size), parallel.pipeline_parallel_size
    count = train.global_batch_size // (train.micro_batch_size * data_size)
    schedule = parallel.pipeline_schedule
    return [
        Job(
            shape=run.model,
            sequence_length=run.data.sequence_length,
            micro_batch_size=train.micro_batch_size,
            parts=tuple(parts),
            held=in_flight(schedule, stages, stage, count),
            micro_batches=count,
            precision=train.precision,
            recompute=train.recompute,
            recompute_every=train.recompute_every,
            dropout=train.dropout,
            attention_backend=train.attention_backend,
            isolate_documents=run.data.isolate_documents,
            compile=train.compile,
            tensor_parallel_size=parallel.tensor_parallel_size,
            sequence_parallel=parallel.sequence_parallel,
            context_parallel_size=parallel.context_parallel_size,
            pipeline_parallel_size=stages,
            replicas=data_size * parallel.context_parallel_size,
            zero_stage=engine.zero_stage,
            offload_optimizer=engine.offload_optimizer,
            offload_parameters=engine.offload_parameters,
            device=device,
        )
        for stage, parts in enumerate(split_layers(run))
    ]

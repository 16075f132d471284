"""Every layout that a model, a batch and a cluster allow, by the rules of megaxf.config_layout.

Left out, since it never pays: tensor parallelism beyond a node. Not searched: offloading, recomputation in some layers
only, explicit splits of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.parameters import Shape, check_length
from megaxf.plan.stages import SCHEDULES
from megaxf.plan.throughput.hardware import Hardware
from megaxf.plan.throughput.layout import Layout

RECOMPUTE = ("none", "selective", "full")
ORDER = ("pipeline", "data", "context", "tensor")


@dataclass(frozen=True)
class Task:
    """What is to be laid out, and on what."""

    shape: Shape
    sequence_length: int
    global_batch_size: int
    """Sequences."""
    hardware: Hardware
    world_size: int
    memory: float
    """Bytes that a rank may need, allowances with them."""
    compile: bool = False
    precision: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("sequence_length", "global_batch_size", "world_size", "memory"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} = {getattr(self, name)} is too small; use a number above 0")
        check_length(self.shape, self.sequence_length)


class Candidate(NamedTuple):
    """One layout; fields are named as those of a run."""

    tensor_parallel_size: int
    sequence_parallel: bool
    context_parallel_size: int
    pipeline_parallel_size: int
    pipeline_schedule: str
    zero_stage: int
    micro_batch_size: int
    recompute: str

    def data_parallel_size(self, world_size: int) -> int:
        """Ranks along the data axis."""
        return world_size // (self.tensor_parallel_size * self.context_parallel_size * self.pipeline_parallel_size)

    def settings(self) -> dict[str, dict[str, Any]]:
        """As the sections of a run file."""
        values = self._asdict()
        return {
            "parallel": {name: values[name] for name in values if "parallel" in name or "pipeline" in name},
            "engine": {"zero_stage": self.zero_stage},
            "train": {"micro_batch_size": self.micro_batch_size, "recompute": self.recompute},
        }


def candidates(task: Task) -> Iterator[Candidate]:
    """All of them, those with the fewest cuts first."""
    for tensor, sequence in _tensor(task):
        for context in _divisors(task.world_size // tensor):
            if not _cuts_sequences(task, tensor if sequence else 1, context):
                continue
            for stages in _divisors(task.world_size // (tensor * context)):
                ranks = task.world_size // (tensor * context * stages)
                if stages <= task.shape.num_hidden_layers and task.global_batch_size % ranks == 0:
                    for rest in _rest(task, stages, task.global_batch_size // ranks):
                        yield Candidate(tensor, sequence, context, stages, *rest)


def columns(task: Task, chosen: Sequence[Candidate]) -> Layout:
    """Many layouts as one whose fields are arrays."""
    fields = zip(Candidate._fields, zip(*chosen, strict=True), strict=True)
    arrays: dict[str, Any] = {name: np.array(values) for name, values in fields}
    return Layout(
        task.shape,
        task.sequence_length,
        task.world_size,
        task.global_batch_size,
        precision=task.precision,
        compile=task.compile,
        order=ORDER,
        **arrays,
    )


def as_run(task: Task, candidate: Candidate) -> Any:
    """What memory and throughput ask of a run."""
    sections = candidate.settings()
    parallel = SimpleNamespace(
        **sections["parallel"], data_parallel_size=candidate.data_parallel_size, pipeline_layers=None, order=ORDER
    )
    train = sections["train"] | {"global_batch_size": task.global_batch_size, "precision": task.precision}
    plain = {"recompute_every": 1, "dropout": 0.0, "attention_backend": "sdpa", "compile": task.compile}
    return SimpleNamespace(
        model=task.shape,
        data=SimpleNamespace(sequence_length=task.sequence_length, isolate_documents=False),
        train=SimpleNamespace(**train, **plain),
        parallel=parallel,
        engine=SimpleNamespace(**sections["engine"], offload_optimizer="none", offload_parameters="none"),
    )


def check_model(task: Task, model: Shape) -> None:
    """Raises PlanError where a run trains another model than the one that is laid out."""
    names = [name for name, of in vars(Shape).items() if isinstance(of, property)]
    pairs = {name: (getattr(model, name), getattr(task.shape, name)) for name in names}
    if other := [f"{name} = {own} there, {asked} here" for name, (own, asked) in pairs.items() if own != asked]:
        raise PlanError(f"--beside is a run of another model: {', '.join(other)}; name the run's model as MODEL")


def ignored(task: Task, candidate: Candidate, run: Any) -> list[str]:
    """What a run says that its layout in this task is predicted without: "train.precision = fp32, not bf16"."""
    assumed = as_run(task, candidate)
    found = []
    for section in ("data", "train", "parallel", "engine"):
        for name, value in vars(getattr(assumed, section)).items():
            own = getattr(getattr(run, section), name)
            same = own == (list(value) if isinstance(value, tuple) else value)
            if not callable(value) and not same:
                found.append(f"{section}.{name} = {own}, not {value}")
    return found


def _tensor(task: Task) -> Iterator[tuple[int, bool]]:
    """Degrees of tensor parallelism, without and with sequence parallelism."""
    shape, keys = task.shape, task.shape.num_key_value_heads
    for size in _divisors(task.world_size):
        share = -(-shape.vocab_size // size)
        even = shape.num_attention_heads % size == shape.intermediate_size % size == 0
        words = share * (size - 1) < shape.vocab_size
        if even and words and size <= task.hardware.node_size and (keys % size == 0 or size % keys == 0):
            yield from ((size, sequence) for sequence in ((False, True) if size > 1 else (False,)))


def _cuts_sequences(task: Task, between: int, context: int) -> bool:
    """Context parallelism takes pieces from both ends of a sequence."""
    balanced = 2 * context if context > 1 else 1
    return task.sequence_length % balanced == task.sequence_length % (context * between) == 0


def _rest(task: Task, stages: int, share: int) -> Iterator[tuple[str, int, int, str]]:
    """(schedule, ZeRO stage, micro-batch, recomputation). share: sequences of a data-parallel rank in a step."""
    for schedule in SCHEDULES if stages > 1 else SCHEDULES[:1]:
        if stages * (1 if schedule == "1f1b" else 2) > max(task.shape.num_hidden_layers, stages):
            continue
        for micro in _divisors(share):
            count = share // micro
            filled = {"interleaved": count % stages == 0, "dualpipev": count >= 2 * stages}
            if filled.get(schedule, True):
                for zero in (1,) if stages > 1 else (0, 1, 2, 3):
                    yield from ((schedule, zero, micro, recompute) for recompute in RECOMPUTE)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})

"""What is asked of the planner, and whether it can be asked."""

from __future__ import annotations

from typing import NamedTuple

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import Law
from megaxf.plan.quantities import quantity
from megaxf.plan.search.failures import Failures
from megaxf.plan.throughput.hardware import Hardware


class Request(NamedTuple):
    """Limits in GPU-hours, of which the tightest counts, and what of the training is fixed; None where it is not."""

    dollars: float | None = None
    gpu_hours: float | None = None
    days: float | None = None
    flops: float | None = None
    parameters: float | None = None
    tokens: float | None = None
    inference_tokens: float | None = None
    unique_tokens: float | None = None
    sequence_length: int = 4096
    batch: int | None = None
    """Sequences of a step; by default what laws suggest."""
    vocab_size: int | None = None
    compile: bool = False


class Means(NamedTuple):
    """With what it is to be done."""

    hardware: Hardware
    world_size: int
    price: float | None
    """Dollars for an hour of a GPU."""
    law: Law
    failures: Failures = Failures()

    @property
    def surface(self) -> Surface:
        """The law's. Raises PlanError where it gives no loss."""
        if isinstance(self.law.form, Surface):
            return self.law.form
        raise PlanError(f"the law {self.law.name} gives no loss and cannot be planned with; try --law epoch")


class Limit(NamedTuple):
    """GPU-hours that may be spent, and the option that says so."""

    gpu_hours: float
    option: str


_OPTIONS = {
    "dollars": "--budget",
    "gpu_hours": "--gpu-hours",
    "days": "--days",
    "flops": "--flops",
    "parameters": "--params",
    "tokens": "--tokens",
    "inference_tokens": "--inference-tokens",
    "unique_tokens": "--unique-tokens",
    "sequence_length": "--sequence-length",
    "batch": "--batch",
    "vocab_size": "--vocab-size",
}


def check(request: Request, means: Means) -> None:
    """Raises PlanError where the request says too little, too much, or contradicts itself."""
    for field, option in _OPTIONS.items():
        value = getattr(request, field)
        if value is not None and not 0 < value < float("inf"):
            raise PlanError(f"{option} = {value:g} is not a number above 0")
    fixed = given(request, "flops", "parameters", "tokens")
    limits = given(request, "dollars", "gpu_hours", "days")
    if len(fixed) == 3:
        raise PlanError(f"{', '.join(fixed)} are given, but FLOPs = 6 x parameters x tokens: leave one of them out")
    if not fixed and not limits:
        raise PlanError("nothing is given to plan with; give one of --budget, --gpu-hours, --days, --flops, --params")
    if request.dollars is not None and means.price is None:
        raise PlanError(f"--budget needs a price, and {means.hardware.name} has none in the table; give --price")
    _check_tokens(request, fixed, bool(limits))


def _check_tokens(request: Request, fixed: list[str], limited: bool) -> None:
    """Of those that are served and those that there are."""
    extra = given(request, "inference_tokens", "unique_tokens")
    if len(extra) == 2:
        raise PlanError("--inference-tokens and --unique-tokens are given, but no law covers both; give one of them")
    free = not fixed or fixed == ["--flops"]
    if request.inference_tokens is not None and not free:
        raise PlanError(
            f"--inference-tokens has no effect with {' and '.join(fixed)}, since it decides about the size; give a "
            "budget, or --flops alone"
        )
    if request.unique_tokens is not None and not free and len(fixed) == 1 and not limited:
        raise PlanError(
            f"--unique-tokens with {fixed[0]} alone does not say how much to train; add --budget, --days, --gpu-hours, "
            "--flops, or the other of --params and --tokens"
        )


def given(request: Request, *fields: str) -> list[str]:
    """The options that are."""
    return [_OPTIONS[field] for field in fields if getattr(request, field) is not None]


def tightest(request: Request, means: Means) -> Limit | None:
    """The least of what dollars, hours and days allow; None where nothing does."""
    found = []
    if request.dollars is not None and means.price is not None:
        found.append(Limit(request.dollars / means.price, f"--budget = ${quantity(request.dollars)}"))
    if request.gpu_hours is not None:
        found.append(Limit(request.gpu_hours, f"--gpu-hours = {quantity(request.gpu_hours)}"))
    if request.days is not None:
        found.append(Limit(request.days * 24 * means.world_size, f"--days = {request.days:g}"))
    return min(found, default=None)

"""How much of a compute goes into parameters and how much into tokens."""

from __future__ import annotations

from math import exp, log
from typing import Any

from megaxf.plan.budget.request import Means, Request
from megaxf.plan.errors import PlanError
from megaxf.plan.laws import inference, optimum, repetition
from megaxf.plan.laws.optimum import Allocation, allocation
from megaxf.plan.laws.spread import interval
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, Surface

LONGEST = 100.0
"""An inference-aware model takes at most so many times the compute of the cheapest way to its loss."""


def known_flops(request: Request, means: Means) -> float | None:
    """The compute, where it follows from what is fixed without a limit on GPU-hours; else None."""
    if request.flops is not None:
        return request.flops
    size, tokens = request.parameters, request.tokens
    if size is not None and tokens is not None:
        return FLOPS_PER_WEIGHT * size * tokens
    if any(value is not None for value in (request.dollars, request.gpu_hours, request.days)):
        return None
    form = means.surface
    best = optimum.for_parameters(form, size) if size is not None else optimum.for_tokens(form, request.tokens or 0)
    return best.flops


def divide(request: Request, form: Surface, flops: float) -> Allocation:
    """Parameters and tokens of a compute: as given, or as the law says for what will be served or what there is."""
    if request.parameters is not None:
        return allocation(form, request.parameters, flops / FLOPS_PER_WEIGHT / request.parameters)
    if request.tokens is not None:
        return allocation(form, flops / FLOPS_PER_WEIGHT / request.tokens, request.tokens)
    if request.inference_tokens is not None:
        return for_service(form, flops, request.inference_tokens)
    if request.unique_tokens is not None:
        return repetition.for_unique_tokens(form, flops, request.unique_tokens).best
    return optimum.for_flops(form, flops)


def for_service(form: Surface, flops: float, served: float) -> Allocation:
    """The training of so many FLOPs that is the cheapest way to its loss, serving included (arXiv 2401.00448)."""
    from scipy.optimize import brentq

    def training(cheapest: float) -> Allocation:
        """Of the loss that so many FLOPs reach."""
        loss = optimum.for_flops(form, cheapest).loss
        assert loss is not None
        return inference.with_inference(form, loss, served).best

    start = log(flops)
    if training(flops / LONGEST).flops > flops:
        raise PlanError(
            f"--inference-tokens = {served:g} would have a model trained for over {LONGEST:g} times the compute of the "
            "cheapest way to its loss, where no law was fitted; give --params in its place"
        )
    root = brentq(lambda place: log(training(exp(place)).flops) - start, start - log(LONGEST), start + 1e-6, xtol=1e-9)
    found = training(exp(root))
    return allocation(form, found.parameters, flops / FLOPS_PER_WEIGHT / found.parameters)


def expected_loss(request: Request, means: Means, parameters: float, tokens: float) -> tuple[float, Any]:
    """(loss, its interval or None), repeated tokens at what they are worth."""

    def loss(form: Surface) -> Any:
        if request.unique_tokens is None:
            return form.loss(parameters, tokens)
        return repetition.loss(form, parameters, tokens, request.unique_tokens)

    spread = means.law.spread
    return float(loss(means.surface)), None if spread is None else interval(loss(spread.sample()))

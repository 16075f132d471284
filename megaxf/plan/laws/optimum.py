"""Questions to a law: the optimum for a budget, the budget for a size, data or a loss, the cost of leaving it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, PowerLaw, Surface


class Allocation(NamedTuple):
    """A model and its training: FLOPs = 6 x parameters x tokens."""

    parameters: float
    tokens: float
    loss: float | None
    """None where the law gives no loss."""

    @property
    def flops(self) -> float:
        """C of the training."""
        return FLOPS_PER_WEIGHT * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        """D / N."""
        return self.tokens / self.parameters


class Detour(NamedTuple):
    """A model that is not the optimal one, beside the optimum of equal loss and that of equal compute."""

    chosen: Allocation
    same_loss: Allocation | None
    """The cheapest with the chosen one's loss; None where the law gives no loss."""
    same_flops: Allocation

    @property
    def extra_flops(self) -> float | None:
        """Share of compute that the choice costs beyond the cheapest way to its loss."""
        return None if self.same_loss is None else self.chosen.flops / self.same_loss.flops - 1


def allocation(form: Surface | PowerLaw, parameters: float, tokens: float) -> Allocation:
    """A model of N parameters on D tokens, with the loss of the law. Raises PlanError for a number that is not > 0."""
    _check(parameters=parameters, tokens=tokens)
    return Allocation(parameters, tokens, form.loss(parameters, tokens) if isinstance(form, Surface) else None)


def for_flops(form: Surface | PowerLaw, flops: float) -> Allocation:
    """The model of least loss for C."""
    _check(flops=flops)
    parameters = form.parameters(flops)
    return allocation(form, parameters, flops / FLOPS_PER_WEIGHT / parameters)


def for_parameters(form: Surface | PowerLaw, parameters: float) -> Allocation:
    """The training for which N is optimal."""
    _check(parameters=parameters)
    return for_flops(form, _reached(form.flops_for_parameters, "parameters", parameters))


def for_tokens(form: Surface | PowerLaw, tokens: float) -> Allocation:
    """The training for which D is optimal."""
    _check(tokens=tokens)
    return for_flops(form, _reached(form.flops_for_tokens, "tokens", tokens))


def for_loss(form: Surface, loss: float) -> Allocation:
    """The cheapest training that reaches a loss. Raises PlanError where none does."""
    check_loss(form, loss)
    return for_flops(form, _reached(form.flops_for_loss, "loss", loss))


def detour(form: Surface | PowerLaw, parameters: float, tokens: float, loss: float | None = None) -> Detour:
    """What (N, D) costs, in compute at equal loss and in loss at equal compute. loss: by default the law's."""
    chosen = allocation(form, parameters, tokens)
    chosen = chosen if loss is None else chosen._replace(loss=loss)
    same_loss = None
    if isinstance(form, Surface):
        same_loss = for_flops(form, form.flops_for_loss(chosen.loss))
    return Detour(chosen, same_loss, for_flops(form, chosen.flops))


def check_loss(form: Surface, loss: float) -> None:
    """Raises PlanError where the loss is at or below what the law says that text itself has."""
    if not loss > form.E:
        raise PlanError(
            f"a loss of {loss:g} is out of reach: the law has an irreducible loss of {form.E:g} nats per token; ask "
            "for more than that (losses of other tokenizers and corpora are not comparable)"
        )


def _reached(flops: Callable[[float], float], name: str, value: float) -> float:
    """The compute that belongs to a value; powers of far too large numbers are none."""
    try:
        found = flops(value)
    except OverflowError:
        found = inf
    if not found < inf:
        other = "larger" if name == "loss" else "smaller"
        raise PlanError(f"{name} = {value:g} is beyond what this law can be asked about; use a {other} number")
    return found


def _check(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise PlanError(f"{name} = {number:g} is not a number above 0")

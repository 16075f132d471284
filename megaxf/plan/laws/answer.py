"""From a question to a law to all that it says, as plain values for JSON and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.laws import inference, kaplan, optimum, repetition
from megaxf.plan.laws.chinchilla import nearest
from megaxf.plan.laws.hyperparameters import advise
from megaxf.plan.laws.optimum import Allocation
from megaxf.plan.laws.spread import LEVEL, interval
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, PowerLaw, Surface
from megaxf.plan.laws.table import LAWS, Law

SIZE_FACTORS = (0.25, 0.5, 0.75, 1.5, 2.0)
"""Of the optimal size, for the cost of leaving it."""


class Question(NamedTuple):
    """One of flops, parameters, tokens and loss asks for the optimum; two of them fix a training of one's own."""

    flops: float | None = None
    parameters: float | None = None
    tokens: float | None = None
    loss: float | None = None
    inference_tokens: float | None = None
    unique_tokens: float | None = None

    def given(self) -> dict[str, float]:
        """Those of the first four that are asked with. Raises PlanError unless they are one or two."""
        names = ("flops", "parameters", "tokens", "loss")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not 1 <= len(found) <= 2:
            raise PlanError(
                f"{len(found)} of {', '.join(names)} are given; give one to ask for the optimum, or two for a "
                "training of your own"
            )
        if set(found) in ({"flops", "loss"}, {"tokens", "loss"}):
            raise PlanError(f"{' and '.join(found)} are given; beside a loss, give the parameters or nothing")
        if self.unique_tokens is not None and set(found) == {"parameters", "loss"}:
            raise PlanError(
                "parameters, loss and unique tokens are given, but repeats may not reach a loss; give tokens or flops "
                "in place of the loss"
            )
        if self.unique_tokens is not None and self.inference_tokens is not None:
            raise PlanError("inference tokens and unique tokens are given, but no law covers both; give one of them")
        return found


def answer(law: Law, question: Question) -> dict[str, Any]:
    """All that a law says to a question; raises PlanError where it has no answer."""
    given = question.given()
    training = _training(law, given)
    form = law.form
    best = optimum.for_flops(form, training.flops)
    own, unique = len(given) == 2, question.unique_tokens
    repeated = _repeated(law, training, unique)
    if own and unique is not None:
        training = training._replace(loss=float(_loss(_surface(law, "unique tokens"), training, unique)))
    found: dict[str, Any] = {
        "law": _describe(law),
        "question": {name: value for name, value in question._asdict().items() if value is not None},
        "training": _values(training) | {"interval": _intervals(law, given, unique)},
        "optimum_of_equal_flops": _values(best) if own else None,
        "off_optimum": _off_optimum(form, best) if isinstance(form, Surface) and not own else None,
        "cost_of_choice": _cost(form, training) if own else None,
        "lifetime": _lifetime(law, training, question.inference_tokens),
        "repeated": repeated,
        "kaplan_losses": _kaplan(training) if law.name == "kaplan" else None,
        "other_laws": [] if own else list(_others(law, given)),
    }
    # A training of one's own is begun as it is given; else the choice is what the law makes of served or short tokens.
    choice = (not own and (found["lifetime"] or repeated)) or {"best": found["training"]}
    chosen = Allocation(*(choice["best"][name] for name in Allocation._fields))
    return found | {"hyperparameters": _hyperparameters(chosen), "neighbour": _neighbour(chosen.parameters)}


def _training(law: Law, given: dict[str, float]) -> Allocation:
    """The optimum that is asked for, or the training that is given."""
    form = law.form
    if set(given) == {"parameters", "loss"}:
        surface = _surface(law, "a loss")
        optimum.check_loss(surface, given["loss"])
        least = surface.least_parameters(given["loss"])
        if given["parameters"] <= least:
            raise PlanError(
                f"{given['parameters']:g} parameters reach a loss of {given['loss']:g} with no amount of data: by the "
                f"law {law.name} that takes more than {least:.4g}"
            )
        tokens = surface.tokens_for_loss(given["parameters"], given["loss"])
        return optimum.allocation(form, given["parameters"], tokens)
    if len(given) == 2:
        size, tokens, flops = (given.get(name) for name in ("parameters", "tokens", "flops"))
        size = size or (flops or 0) / FLOPS_PER_WEIGHT / (tokens or 1)
        return optimum.allocation(form, size, tokens or (flops or 0) / FLOPS_PER_WEIGHT / size)
    (name, value), *_ = given.items()
    if name == "loss":
        return optimum.for_loss(_surface(law, "a loss"), value)
    return getattr(optimum, f"for_{name}")(form, value)


def _surface(law: Law, question: str) -> Surface:
    if isinstance(law.form, Surface):
        return law.form
    raise PlanError(f"the law {law.name} gives no loss and cannot answer about {question}; try --law epoch")


def _describe(law: Law) -> dict[str, Any]:
    kind = "L = E + A / N^alpha + B / D^beta" if isinstance(law.form, Surface) else "N = coefficient C^exponent"
    fields = {"name": law.name, "form": kind, "constants": asdict(law.form), "exponent": law.form.exponent}
    return fields | {"source": law.source, "counts": law.counts, "published": law.published}


def _values(training: Allocation) -> dict[str, Any]:
    return training._asdict() | {"flops": training.flops, "tokens_per_parameter": training.tokens_per_parameter}


def _loss(form: Surface, training: Allocation, unique: float | None) -> Any:
    """Of a training, repeated tokens at what they are worth."""
    if unique is None:
        return form.loss(training.parameters, training.tokens)
    return repetition.loss(form, training.parameters, training.tokens, unique)


def _intervals(law: Law, given: dict[str, float], unique: float | None) -> dict[str, Any] | None:
    """Of each prediction that is not given: low, median and high, None where a part of the sample has no answer."""
    if law.spread is None:
        return None
    sample = law.spread.sample()
    if len(given) == 2:
        training = _training(law, given)
        answers = {} if "loss" in given else {"loss": _loss(sample, training, unique)}
    else:
        answers = _optima(sample, given)
    found: dict[str, Any] = {"level": LEVEL}
    for name, values in answers.items():
        found[name] = [end if np.isfinite(end) else None for end in interval(values)]
    return found


def _optima(sample: Surface, given: dict[str, float]) -> dict[str, Any]:
    """What each law of a sample says, but for what is given; infinite where it has no answer (a loss below its E)."""
    (name, value), *_ = given.items()
    with np.errstate(invalid="ignore", divide="ignore"):
        flops = value if name == "flops" else getattr(sample, f"flops_for_{name}")(value)
        size = value if name == "parameters" else sample.parameters(flops)
        tokens = value if name == "tokens" else flops / FLOPS_PER_WEIGHT / size
        every = {"flops": flops, "parameters": size, "tokens": tokens, "tokens_per_parameter": tokens / size}
        every["loss"] = sample.loss(size, tokens)
    return {key: np.nan_to_num(array, nan=np.inf, posinf=np.inf) for key, array in every.items() if key != name}


def _off_optimum(form: Surface, best: Allocation) -> list[dict[str, Any]]:
    """What other sizes cost: data and compute at equal loss, loss at equal compute."""
    rows = []
    for factor in SIZE_FACTORS:
        data = float(form.data_factor(factor))
        loss = form.loss(factor * best.parameters, best.tokens / factor)
        reached = np.isfinite(data)
        rows.append(
            {
                "size_factor": factor,
                "data_factor": data if reached else None,
                "extra_flops": factor * data - 1 if reached else None,
                "extra_loss": loss - best.loss,
            }
        )
    return rows


def _cost(form: Surface | PowerLaw, training: Allocation) -> dict[str, Any]:
    """Of a training of one's own."""
    off = optimum.detour(form, training.parameters, training.tokens, training.loss)
    same = None if off.same_loss is None else _values(off.same_loss)
    floor = form.E + form.A / training.parameters**form.alpha if isinstance(form, Surface) else None
    return {"cheapest_of_equal_loss": same, "extra_flops": off.extra_flops, "loss_with_unlimited_data": floor}


def _lifetime(law: Law, training: Allocation, served: float | None) -> dict[str, Any] | None:
    if served is None:
        return None
    loss = _surface(law, "inference tokens").loss(training.parameters, training.tokens)
    life = inference.with_inference(_surface(law, "inference tokens"), loss, served)
    flops = {"flops_in_all": life.flops(life.best), "flops_of_the_training_optimum": life.flops(life.training_optimum)}
    best, start = _values(life.best), _values(life.training_optimum)
    return {"best": best, "training_optimum": start, "saving": life.saving} | flops


def _repeated(law: Law, training: Allocation, unique: float | None) -> dict[str, Any] | None:
    if unique is None:
        return None
    found = repetition.for_unique_tokens(_surface(law, "unique tokens"), training.flops, unique)
    worth = repetition.worth(found.best.tokens, unique, repetition.TOKEN_DECAY)
    more = {"epochs": found.epochs, "worth_in_new_tokens": float(worth)}
    return {"best": _values(found.best), "unlimited": _values(found.unlimited)} | more


def _kaplan(training: Allocation) -> dict[str, float]:
    return {
        "L(N)": kaplan.loss_of_parameters(training.parameters),
        "L(D)": kaplan.loss_of_tokens(training.tokens),
        "L(C)": kaplan.loss_of_compute(training.flops),
        "L(N, D)": kaplan.joint_loss(training.parameters, training.tokens),
    }


def _others(law: Law, given: dict[str, float]) -> Iterator[dict[str, Any]]:
    """The optimum by each other law that can answer."""
    for other in LAWS.values():
        if other.name == law.name:
            continue
        if "loss" in given and (not isinstance(other.form, Surface) or given["loss"] <= other.form.E):
            continue
        yield {"law": other.name, "counts": other.counts} | _values(_training(other, given))


def _hyperparameters(training: Allocation) -> dict[str, Any]:
    advice = advise(training)
    return {
        "learning_rate": advice.learning_rate(),
        "batch_tokens": advice.batch_tokens(),
        "critical_batch_tokens": advice.critical_batch_tokens,
        "warmup_tokens": advice.warmup_tokens,
        "suggestions": [row._asdict() for row in advice.suggestions],
    }


def _neighbour(parameters: float) -> dict[str, Any] | None:
    """The published shape of that size, None where there is none within a factor of two."""
    shape = nearest(parameters)
    if not 0.5 < shape.parameters / parameters < 2:
        return None
    return shape._asdict() | {"parameters": shape.parameters, "flops_over_6nd": shape.flops_ratio}

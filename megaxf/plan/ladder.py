"""A ladder of small runs to fit a law from: some budgets, at each several sizes on both sides of the expected optimum.

Settings are scaled from a run whose values are good at its size: batch with N^(2/3), learning rate with N^(-1/3), about
as many tokens of warm-up as parameters (Porian et al., arXiv 2406.19146), each run's schedule ends with its tokens
(arXiv 2203.15556).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log, sqrt
from typing import Any, NamedTuple

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.page import figure, table
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, PowerLaw, Surface
from megaxf.plan.parameters import Shape, count
from megaxf.plan.quantities import quantity

Build = Callable[[Mapping[str, Any]], Shape]
"""A model's settings -> its Config."""

STEP = sqrt(10)
"""Between budgets."""
WIDTH = 4.0
"""The smallest and the largest size of a budget are the optimum over and times this."""
ASPECT = (16, 64, 130)
"""Hidden size over layers: least, best, most. The shapes of arXiv 2203.15556, table A9, have 38 to 110."""
LEAST_STEPS = 100
"""A run has: else its batch is made smaller."""
MOST_WARMUP = 0.1
"""Of the steps."""


class Rung(NamedTuple):
    """One run of the ladder."""

    name: str
    parameters: int
    tokens: int
    settings: dict[str, Any]
    """A whole run, as its YAML file holds it."""

    @property
    def flops(self) -> float:
        """C = 6 N D."""
        return FLOPS_PER_WEIGHT * self.parameters * self.tokens


def ladder(
    base: Mapping[str, Any],
    build: Build,
    form: Surface | PowerLaw,
    largest: float,
    budgets: int,
    sizes: int,
    folder: str,
) -> Iterator[Rung]:
    """The runs, cheapest budget first.

    base: a whole resolved run. build: the Config of its family. form: the law that says where the optimum may lie.
    largest: FLOPs of a run of the largest budget. folder: where the run folders go.
    Two places of a budget may have one shape, which is trained once. Raises PlanError where a run would be too short.
    """
    if budgets < 2 or sizes < 5:
        raise PlanError(f"{budgets} budgets of {sizes} sizes do not identify a law; at least 2 budgets of 5 sizes do")
    seen = set()
    for number in reversed(range(budgets)):
        flops = largest / STEP**number
        optimum = form.parameters(flops)
        for place in range(sizes):
            target = optimum * WIDTH ** (2 * place / (sizes - 1) - 1)
            rung = _rung(base, build, shape_of(base["model"], build, target), flops, folder)
            if rung.name not in seen:
                seen.add(rung.name)
                yield rung


def shape_of(model: Mapping[str, Any], build: Build, parameters: float) -> dict[str, Any]:
    """The settings of a model of about so many parameters: wide and deep in proportion, all else as in `model`.

    Heads are as wide as in `model` where that divides the hidden size; key heads are as many as query heads.
    Raises PlanError where the vocabulary leaves no room for layers.
    """
    found = []
    for hidden in _HIDDEN_SIZES:
        first, second = (count(build(_shaped(model, build, hidden, layers))).total for layers in (1, 2))
        layers = round((parameters - first) / (second - first)) + 1
        if layers > 0 and ASPECT[0] <= hidden / layers <= ASPECT[2]:
            shape = _shaped(model, build, hidden, layers)
            # A tenth in size weighs as much as a factor of e in the aspect.
            off = abs(log(count(build(shape)).total / parameters)) + 0.1 * abs(log(hidden / layers / ASPECT[1]))
            found.append((off, hidden, shape))
    if not found:
        raise PlanError(
            f"no model of {quantity(parameters)} parameters has a vocabulary of {model['vocab_size']:,} and a hidden "
            f"size of {ASPECT[0]} to {ASPECT[2]} times its layers; take more FLOPs or a smaller vocabulary"
        )
    return min(found)[2]


_HIDDEN_SIZES = [*range(32, 256, 16), *range(256, 1024, 32), *range(1024, 4096, 64), *range(4096, 16_385, 256)]


def _shaped(model: Mapping[str, Any], build: Build, hidden: int, layers: int) -> dict[str, Any]:
    """The MLP has as many weights in each family; settings that the family has not are left out."""
    given = build(model)
    width = next(size for size in (given.head_dim, 64, 32, 16) if hidden % size == 0)
    heads = {"head_dim": width, "num_attention_heads": hidden // width, "num_key_value_heads": hidden // width}
    return dict(model) | {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 16 * round(hidden * 8 / given.structure.mlp_matrices / 16),
        **{name: size for name, size in heads.items() if name in model},
    }


def _rung(base: Mapping[str, Any], build: Build, model: dict[str, Any], flops: float, folder: str) -> Rung:
    """One run: the base's settings, scaled to the size, for the tokens that the budget leaves."""
    size, length, train = count(build(model)).total, base["data"]["sequence_length"], base["train"]
    scale = size / count(build(base["model"])).total
    wanted = flops / FLOPS_PER_WEIGHT / size
    micro = train["micro_batch_size"]
    batch = min(train["global_batch_size"] * scale ** (2 / 3), wanted / length / LEAST_STEPS)
    batch = micro * max(1, round(batch / micro))
    steps = round(wanted / (batch * length))
    name = f"{flops:.2g}-{quantity(size)}"
    if steps < LEAST_STEPS // 2:
        raise PlanError(
            f"the run {name} would have {steps} steps of {batch} sequences of {length} tokens; take more FLOPs, or a "
            "smaller train.micro_batch_size or data.sequence_length"
        )
    warmup = max(1, min(round(size / (batch * length)), round(MOST_WARMUP * steps)))
    rate, least = (value * scale ** (-1 / 3) for value in (base["optimizer"]["learning_rate"], _least_rate(base)))
    schedule = base["schedule"] | {"warmup_steps": warmup, "min_learning_rate": float(f"{least:.3g}")}
    settings = dict(base) | {
        "run_folder": f"{folder}/{name}",
        "model": model,
        "train": train | {"steps": steps, "global_batch_size": batch},
        "optimizer": base["optimizer"] | {"learning_rate": float(f"{rate:.3g}")},
        "schedule": {key: value for key, value in schedule.items() if key != "decay_steps"},
        "checkpoint": {"every": 0, "keep_last": 1},
    }
    return Rung(name, size, steps * batch * length, settings)


def _least_rate(base: Mapping[str, Any]) -> float:
    return float(base["schedule"].get("min_learning_rate", 0.0))


def hint(listing: str, folder: str) -> str:
    """How to run what the lines of a file name, and what comes after."""
    return f"""\
on a cluster:  megaxf submit {listing} --template sweep --gpus-per-node 1 --time 4:00:00
on a machine:  while read -r run; do megaxf pretrain "$run"; done < {listing}
then:          megaxf plan fit {folder} -o {folder}/fit"""


def page(rungs: Sequence[Rung]) -> str:
    """The runs as a table."""
    rows = []
    for rung in rungs:
        train, shape = rung.settings["train"], rung.settings["model"]
        rows.append(
            [
                rung.name,
                f"{shape['num_hidden_layers']} x {shape['hidden_size']}",
                quantity(rung.tokens),
                figure("tokens_per_parameter", rung.tokens / rung.parameters),
                f"{train['steps']:,}",
                str(train["global_batch_size"]),
                f"{rung.settings['optimizer']['learning_rate']:.2e}",
            ]
        )
    head = ["FLOPs-parameters", "shape", "tokens", "D/N", "steps", "batch", "learning rate"]
    total = f"{len(rungs)} runs, {sum(rung.flops for rung in rungs):.3g} FLOPs in all"
    return "\n".join([*table(rows, head), total])

"""From a number of parameters to the sizes of a model of the Llama family.

What GPUs like (arXiv 2401.14489): every extent a multiple of 64 or more on each tensor-parallel rank, heads of 64 or
128. What layouts need: heads and the MLP's width divisible by the tensor-parallel degree, layers by the pipeline's.
Within that the hidden size over the layers is as published models of the size have it, and the MLP's width makes up
the count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, log
from typing import NamedTuple

from megaxf.plan.errors import PlanError
from megaxf.plan.parameters import Structure, count
from megaxf.plan.quantities import quantity
from megaxf.plan.shape.published import usual_aspect

TIED_BELOW = 4.5e9
"""Parameters below which the embedding table is the output matrix, too: so have it Llama 3, Qwen2.5 and Qwen3."""
TABLE_SHARE = 0.25
"""Of the parameters, in the tables of a vocabulary that is not given, at the most."""
VOCABULARIES = [2**power for power in range(8, 18)]
KEY_HEADS = 8
"""Key/value heads of published models from 7B on; smaller ones have about a quarter of the query heads."""
WIDTH = 3.0
"""Best MLP width over hidden size: Llama has 2.7 to 3.5, Qwen up to 5.8."""
UNITS = {256: 0.0, 128: 0.002, 64: 0.005, 32: 0.03, 16: 0.06, 8: 0.1}
"""What a rank's share of the MLP's width may be a multiple of, and what that costs in the score."""
EXACT_FROM, TOLERANCE, LOOSE = 1e8, 0.02, 0.1
"""From so many parameters on a proposal has to be so near, below only that near."""
ODD_HIDDEN = {1024: 0.0, 512: 0.005, 256: 0.01, 128: 0.02, 64: 0.04, 16: 0.08}
ODD_HEADS = {8: 0.0, 4: 0.01, 2: 0.02, 1: 0.03}
ODD_LAYERS = {8: 0.0, 4: 0.003, 2: 0.006, 1: 0.015}
"""What the hidden size, the heads and the layers are multiples of, and what that costs in the score."""


MOST_PARAMETERS = 2e13
"""Beyond all that was trained: a request for more is a slip."""


class Room(NamedTuple):
    """How far proportions may be off what is usual."""

    aspect_factor: float
    """By which hidden size over layers may be more or less."""
    narrow: float
    """The least MLP width over hidden size."""
    wide: float


ROOMS = (Room(2, 2.5, 4.5), Room(6, 2.0, 6.0))
"""The second is taken where degrees leave nothing in the first."""


@dataclass(frozen=True)
class Sizes:
    """A proposal, under the names of a model's Config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    @property
    def structure(self) -> Structure:
        """A proposal is of the Llama family."""
        return Structure()


class Wish(NamedTuple):
    """What is wanted of a shape."""

    parameters: float
    counts: str = "total"
    """The field of a ParameterCount that should be so many."""
    vocab_size: int | None = None
    key_heads: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1


class Proposal(NamedTuple):
    """Sizes and how well they do."""

    score: float
    """0 is perfect: the wanted count exactly, all proportions as usual."""
    sizes: Sizes
    deviation: float
    """Of the count from the wanted one, as a share."""


def propose(wish: Wish, many: int = 3) -> list[Proposal]:
    """The best shapes, each with another hidden size, best first. Raises PlanError where there is none."""
    _check(wish)
    for room in ROOMS:
        best: dict[int, Proposal] = {}
        for found in _proposals(wish, room):
            hidden = found.sizes.hidden_size
            if hidden not in best or found.score < best[hidden].score:
                best[hidden] = found
        if best:
            return sorted(best.values(), key=lambda found: found.score)[:many]
    raise PlanError(_nothing(wish))


def vocabulary(wish: Wish) -> int:
    """A given vocabulary, filled up to a multiple of 64; else the largest power of two with room for its tables."""
    if wish.vocab_size:
        return -(-wish.vocab_size // 64) * 64
    hidden = (wish.parameters * usual_aspect(wish.parameters) / 12) ** (1 / 3)
    room = TABLE_SHARE * wish.parameters / (hidden * (1 if _tied(wish) else 2))
    return max((size for size in VOCABULARIES if size <= room), default=VOCABULARIES[0])


def _tied(wish: Wish) -> bool:
    return wish.parameters < TIED_BELOW


def _check(wish: Wish) -> None:
    numbers = {
        "--params": wish.parameters,
        "--vocab-size": wish.vocab_size,
        "--kv-heads": wish.key_heads,
        "--tensor-parallel": wish.tensor_parallel_size,
        "--pipeline-parallel": wish.pipeline_parallel_size,
    }
    for name, number in numbers.items():
        if number is not None and not 1 <= number < float("inf"):
            raise PlanError(f"{name} = {number:g} is too small or no number; use 1 or more")
    if wish.parameters > MOST_PARAMETERS:
        raise PlanError(
            f"{wish.parameters:.3g} parameters are more than any model has; use at most {MOST_PARAMETERS:.0e}"
        )


def _nothing(wish: Wish) -> str:
    table = f"a vocabulary of {vocabulary(wish):,}"
    heads = f"{wish.key_heads} key/value heads, " if wish.key_heads else ""
    return (
        f"no shape of {quantity(wish.parameters)} parameters has {table}, {heads}heads for --tensor-parallel "
        f"{wish.tensor_parallel_size} and layers for --pipeline-parallel {wish.pipeline_parallel_size}; take more "
        "parameters, smaller degrees or a smaller vocabulary"
    )


def _proposals(wish: Wish, room: Room) -> Iterator[Proposal]:
    """All shapes that do, with their score."""
    usual = usual_aspect(wish.parameters)
    limit = TOLERANCE if wish.parameters >= EXACT_FROM else LOOSE
    for start in _frames(wish, usual * room.aspect_factor, room.narrow):
        bare = _count(replace(start, num_hidden_layers=0), wish)
        layer = _count(start, wish) - bare
        slope = 3 * start.hidden_size
        for layers in _depths(wish, start.hidden_size, bare, layer, room):
            missing = (wish.parameters - bare) / layers - layer
            for width, cost in _widths(wish, missing / slope):
                deviation = (bare + layers * (layer + slope * width)) / wish.parameters - 1
                if abs(deviation) <= limit:
                    sizes = replace(start, num_hidden_layers=layers, intermediate_size=width)
                    yield Proposal(_score(sizes, deviation, usual) + cost, sizes, deviation)


def _count(sizes: Sizes, wish: Wish) -> int:
    return int(getattr(count(sizes), wish.counts))


def _frames(wish: Wish, aspect: float, narrow: float) -> Iterator[Sizes]:
    """One layer of each hidden size with its heads, and no MLP.

    aspect: hidden size over layers at the most. narrow: MLP width over hidden size at the least.
    """
    vocab, degree = vocabulary(wish), wish.tensor_parallel_size
    # The widest that can be: layers as few as the aspect allows, with the narrowest MLP.
    widest = (wish.parameters * aspect / (3 * narrow)) ** (1 / 3)
    for head_dim in (16, 32, 64, 128):
        for heads in range(degree, int(widest) // head_dim + 1, degree):
            hidden = heads * head_dim
            if hidden % _unit(hidden) or not _usual_head(hidden) / 2 <= head_dim <= 2 * _usual_head(hidden):
                continue
            if key_heads := _key_heads(heads, wish):
                yield Sizes(vocab, hidden, 0, 1, heads, key_heads, head_dim, _tied(wish))


def _unit(hidden: int) -> int:
    """What a hidden size should be a multiple of."""
    return next(unit for least, unit in ((4096, 256), (1024, 128), (256, 64), (0, 16)) if hidden >= least)


def _usual_head(hidden: int) -> int:
    return 128 if hidden >= 2048 else 64 if hidden >= 256 else 32


def _key_heads(heads: int, wish: Wish) -> int | None:
    """Key/value heads that serve all query heads and lie evenly on tensor-parallel ranks; None where there are none."""
    degree, wanted = wish.tensor_parallel_size, wish.key_heads
    if wanted:
        return wanted if heads % wanted == 0 and (wanted % degree == 0 or degree % wanted == 0) else None
    usual = min(KEY_HEADS, heads / 4)
    able = [number for number in range(degree, heads + 1, degree) if heads % number == 0]
    return min(able, key=lambda number: abs(log(number / usual)))


def _depths(wish: Wish, hidden: int, bare: int, layer: int, room: Room) -> range:
    """Layers that leave the MLP a width in proportion.

    bare and layer: parameters without layers, and of one without its MLP.
    """
    stages, balanced = wish.pipeline_parallel_size, hidden / usual_aspect(wish.parameters)
    least, most = ((wish.parameters - bare) / (layer + 3 * ratio * hidden**2) for ratio in (room.wide, room.narrow))
    first = ceil(max(least, balanced / room.aspect_factor, 1) / stages) * stages
    return range(first, floor(min(most, balanced * room.aspect_factor)) + 1, stages)


def _widths(wish: Wish, width: float) -> Iterator[tuple[int, float]]:
    """Widths of the MLP about the one that makes up the count, by the unit of a rank's share, with the unit's cost."""
    for unit, cost in UNITS.items():
        step = unit * wish.tensor_parallel_size
        if rounded := round(width / step) * step:
            yield rounded, cost


def _score(sizes: Sizes, deviation: float, usual: float) -> float:
    """Weighs 1 % of the count as a fifth in the aspect or in the MLP's proportion, and what is odd a little."""
    hidden = sizes.hidden_size
    aspect, width = hidden / sizes.num_hidden_layers / usual, sizes.intermediate_size / hidden / WIDTH
    head = abs(log(sizes.head_dim / _usual_head(hidden), 2))
    proportions = 0.4 * (log(aspect) ** 2 + log(width) ** 2) + 0.05 * head
    return 1.5 * abs(deviation) + proportions + _odd(sizes)


def _odd(sizes: Sizes) -> float:
    """The cost of what is a multiple of little."""
    numbers = (
        (sizes.hidden_size, ODD_HIDDEN),
        (sizes.num_attention_heads, ODD_HEADS),
        (sizes.num_hidden_layers, ODD_LAYERS),
    )
    return sum(next(cost for unit, cost in costs.items() if number % unit == 0) for number, costs in numbers)

"""Why a run does not fit, and the cheapest changes with which it does.

Changes are tried alone, in pairs and, where these give too few ways, in threes; each is checked to be a valid run and
counted with its own ledgers. What they cost in time is predicted by `megaxf.plan.memory.price`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

from megaxf.plan.memory.ledger import Ledger, ledgers
from megaxf.plan.memory.rows import GROUPS

Settings = Mapping[str, Any]
"""Keys as section.key, and their values."""

NODE = 8
"""Ranks that tensor parallelism spans at the most, as many as share a fast link."""
MOST_STAGES = 16
MOST_CHANGES = 3
"""Made at once."""


class Way(NamedTuple):
    """Settings with which a run fits."""

    settings: Settings
    need: int
    """Bytes of the fullest rank, allowances with them."""
    seconds: float
    """Of a step, as predicted."""
    host: int
    """Bytes on the host of one rank."""


class Reason(NamedTuple):
    """A group of the ledger, at the moment of the most."""

    group: str
    bytes: int
    item: str
    """Its largest row."""
    item_bytes: int
    formula: str


def need(found: Sequence[Ledger]) -> int:
    """Bytes of the fullest rank, allowances with them."""
    return max(ledger.peak + ledger.allowances for ledger in found)


def fullest(found: Sequence[Ledger]) -> Ledger:
    """The ledger of the rank that needs the most."""
    return max(found, key=lambda ledger: ledger.peak + ledger.allowances)


def reasons(ledger: Ledger) -> list[Reason]:
    """What the memory goes to when the most is held, largest first."""
    found = []
    for group in GROUPS:
        rows = [
            row for row in ledger.rows if row.group == group and row.place == "device" and ledger.moment in row.when
        ]
        if rows:
            largest = max(rows, key=lambda row: row.bytes)
            size = ledger.at(ledger.moment, group)
            found.append(Reason(group, size, largest.item, largest.bytes, largest.formula))
    return sorted(found, key=lambda reason: -reason.bytes)


def ways(
    run: Any,
    world_size: int,
    limit: float,
    attempt: Callable[[Settings], Any],
    seconds: Callable[[Any], float],
    device: str = "cuda",
    many: int = 3,
) -> list[Way]:
    """The cheapest ways to make a run fit, each of other kinds of changes, cheapest first; none where nothing helps.

    run: a megaxf.config.Run over `world_size` ranks. limit: bytes of a device. attempt: the run with other settings,
    None where it is not valid. seconds: of a step of a run.
    """
    kinds = changes(run)
    fitting: list[dict[str, Any]] = []
    best: dict[tuple[str, ...], Way] = {}
    for size in range(1, MOST_CHANGES + 1):
        if size == MOST_CHANGES and len(best) >= many:
            break
        for names in combinations(kinds, size):
            for chosen in product(*(kinds[name] for name in names)):
                merged = _merged(chosen)
                if merged is None or any(way.items() <= merged.items() for way in fitting):
                    continue
                if way := _way(attempt(merged), merged, world_size, limit, seconds, device):
                    fitting.append(merged)
                    if names not in best or way.seconds < best[names].seconds:
                        best[names] = way
    return sorted(best.values(), key=lambda way: way.seconds)[:many]


def _merged(chosen: Sequence[Settings]) -> dict[str, Any] | None:
    """All settings together; None where two want another value for one."""
    merged: dict[str, Any] = {}
    for settings in chosen:
        if any(merged.get(key, value) != value for key, value in settings.items()):
            return None
        merged |= settings
    return merged


def _way(
    changed: Any, settings: Settings, world_size: int, limit: float, seconds: Callable[[Any], float], device: str
) -> Way | None:
    """None where the run is not valid or does not fit."""
    if changed is None:
        return None
    found = ledgers(changed, world_size, device)
    size = need(found)
    if size > limit:
        return None
    return Way(settings, size, seconds(changed), max(ledger.off_device("host") for ledger in found))


def changes(run: Any) -> dict[str, list[dict[str, Any]]]:
    """Kind of change -> its alternatives, each as settings that the run does not have yet."""
    train, parallel, zero = run.train, run.parallel, run.engine.zero_stage
    sharing = {"parallel.sequence_parallel": True}
    sizes = [size for size in range(1, train.micro_batch_size) if train.micro_batch_size % size == 0]
    piped = {} if zero == 1 else {"engine.zero_stage": 1}
    tensor, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    kinds = {
        "recomputation": list(_recomputation(train)),
        "sequence parallelism": [sharing] if tensor > 1 and not parallel.sequence_parallel else [],
        "micro-batch": [{"train.micro_batch_size": size} for size in sizes],
        "ZeRO": [{"engine.zero_stage": stage} for stage in range(zero + 1, 4)],
        "tensor parallelism": [{"parallel.tensor_parallel_size": n} | sharing for n in _doubled(tensor, NODE)],
        "context parallelism": [
            {"parallel.context_parallel_size": n} for n in _doubled(parallel.context_parallel_size, NODE)
        ],
        "pipeline parallelism": [{"parallel.pipeline_parallel_size": n} | piped for n in _doubled(stages, MOST_STAGES)],
        "offloading": list(_offloading(run.engine)),
    }
    return {name: alternatives for name, alternatives in kinds.items() if alternatives}


def _recomputation(train: Any) -> Iterator[dict[str, Any]]:
    """Modes that keep less than the run's."""
    if train.recompute == "none":
        yield {"train.recompute": "selective"}
    if train.recompute == "selective" and train.recompute_every > 1:
        yield {"train.recompute_every": 1}
    every = train.recompute_every if train.recompute == "full" else 8
    for fewer in (4, 2, 1):
        if fewer < every:
            yield {"train.recompute": "full", "train.recompute_every": fewer}


def _offloading(engine: Any) -> Iterator[dict[str, Any]]:
    """To the host; weights only where they are cut."""
    if engine.offload_optimizer == "none":
        yield {"engine.offload_optimizer": "cpu", "engine.zero_stage": max(engine.zero_stage, 2)}
    if engine.offload_parameters == "none":
        whole = {"engine.offload_optimizer": "cpu", "engine.offload_parameters": "cpu", "engine.zero_stage": 3}
        yield whole


def _doubled(size: int, most: int) -> list[int]:
    """Larger sizes by factors of two."""
    found = []
    while 2 * size <= most:
        size *= 2
        found.append(size)
    return found

"""How much of each source: by weight, by token budget or by epochs, and how often a source may be repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from data_pipeline.errors import DataError

Unit = Literal["weight", "tokens", "epochs"]


class Share(NamedTuple):
    """The part of one source. All rows are equally long, so a weight is a share of the rows and of the tokens alike."""

    amount: float
    unit: Unit = "weight"


def as_share(value: float | Share) -> Share:
    """A bare number is a weight."""
    return value if isinstance(value, Share) else Share(value)


def weights_of(shares: Mapping[str, Share], rows: Mapping[str, int]) -> list[float]:
    """The weights of the sources in the order of `shares`; `rows` are those of an epoch of each.

    Token budgets and epochs are reached together when the run is as long as their sum, and in proportion before.
    Raises DataError for amounts that are no finite number from 0 up, that are all 0, or of different units.
    """
    # Nothing is nothing in any unit.
    units = sorted({share.unit for share in shares.values() if share.amount})
    if len(units) > 1:
        named = ", ".join(f"{name} by {share.unit}" for name, share in shares.items())
        raise DataError(f"sources are shared out by {' and '.join(units)} ({named}); give all of them one unit")
    for name, share in shares.items():
        if not (math.isfinite(share.amount) and share.amount >= 0):
            raise DataError(f"source {name} has {share.unit} = {share.amount}; give a finite number from 0 up")
    weights = [share.amount * (rows[name] if share.unit == "epochs" else 1) for name, share in shares.items()]
    if not any(weights):
        raise DataError(f"all sources ({', '.join(shares)}) have the share 0; give one of them more")
    return weights


class SourceUse(NamedTuple):
    """What a run takes from one source: rows of whatever length, their tokens, and epochs of the source."""

    name: str
    rows: int
    tokens: int
    epochs: float


def check_epochs(use: Sequence[SourceUse], limits: Mapping[str, float], policy: Literal["warn", "refuse"]) -> list[str]:
    """A sentence for each source that is repeated more often than its limit (`max_epochs`); [] when none is.

    Raises DataError with all of them where the policy is `refuse`.
    """
    found = {one.name: one for one in use}
    for name in limits:
        if name not in found:
            raise DataError(f"max_epochs names the source {name}, and there are {', '.join(found)}")
    sentences = [
        f"source {name} would be read {found[name].epochs:.2f} times, and max_epochs allows {limit:g}; "
        "train for fewer steps, lower its weight, raise the limit or add data"
        for name, limit in limits.items()
        if found[name].epochs > limit
    ]
    if sentences and policy == "refuse":
        raise DataError("; ".join(sentences))
    return sentences

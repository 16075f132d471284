"""A law of one's own: law.json, as `megaxf plan fit` writes it, is read wherever the name of a law is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.spread import surface_at
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import Law, law
from megaxf.plan.output import written
from megaxf.plan.parameters import COUNTS


class Bootstraps(NamedTuple):
    """How a fitted law varies: the fits to resampled points, as `spread.surface_at` takes them."""

    parameters: float
    tokens: float
    terms: Any
    """[count, 5]"""

    def sample(self) -> Surface:
        """All of them, as one surface with arrays of constants [count]."""
        return surface_at(self.terms, self.parameters, self.tokens)


def find(name: str) -> Law:
    """The law of a name of the table, or of a path to a law.json. Raises PlanError where there is neither."""
    return read_law(Path(name)) if name.endswith(".json") else law(name)


def write_law(path: Path, own: Law) -> None:
    """Write a fitted law with its spread."""
    constants = {name: float(value) for name, value in asdict(own.form).items()}
    described = {"name": own.name, "source": own.source, "counts": own.counts, "published": own.published}
    spread = None
    if isinstance(own.spread, Bootstraps):
        spread = own.spread._asdict() | {"terms": np.asarray(own.spread.terms).tolist()}
    with written(path) as part:
        part.write_text(json.dumps(described | {"constants": constants, "bootstraps": spread}) + "\n", encoding="utf-8")


def read_law(path: Path) -> Law:
    """The law that `write_law` wrote. Raises PlanError for a file that is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _numbers("constants", found["constants"])
        spread = None
        if sample := found["bootstraps"]:
            _numbers("bootstraps", {name: value for name, value in sample.items() if name != "terms"})
            spread = Bootstraps(**sample)._replace(terms=_terms(sample["terms"]))
        if found["counts"] not in COUNTS:
            raise ValueError(f"counts = {found['counts']!r}; use one of {', '.join(COUNTS)}")
        source, counts, published = (str(found[name]) for name in ("source", "counts", "published"))
        return Law(str(path), Surface(**found["constants"]), source, counts, published, spread)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"{path} is not a law that megaxf plan fit wrote: {error}") from None


def _numbers(section: str, found: Mapping[str, Any]) -> None:
    """Raises ValueError for a constant that no law has."""
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{section}.{name} = {value!r} is not a number above 0")


def _terms(found: Any) -> Any:
    """[count, 5]. Raises ValueError for another shape, and for what is no number."""
    terms = np.asarray(found, float)
    if terms.ndim != 2 or terms.shape[1] != 5 or not len(terms) or not np.isfinite(terms).all():
        raise ValueError("bootstraps.terms are not rows of five numbers")
    return terms

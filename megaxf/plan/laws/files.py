"""A law of one's own: law.json, as `megaxf plan fit` writes it, is read wherever the name of a law is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.spread import surface_at
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import Law, law
from megaxf.plan.output import written


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
        form = Surface(**found["constants"])
        spread = Bootstraps(**found["bootstraps"]) if found["bootstraps"] else None
        return Law(str(path), form, found["source"], found["counts"], found["published"], spread)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path} is not a law that megaxf plan fit wrote: {error}") from None

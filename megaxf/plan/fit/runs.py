"""What a law is fitted to: runs with their size, and the loss that they had after so many tokens."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT


@dataclass(frozen=True)
class Curve:
    """One run."""

    name: str
    parameters: float
    tokens: Any
    """[records], rising."""
    losses: Any
    """[records], nats per token."""
    result: float | None = None
    """The loss at the end, of which the fits of a surface are made; None: the last of `losses`."""


class Points(NamedTuple):
    """Results of runs, [runs] each."""

    names: tuple[str, ...]
    parameters: Any
    tokens: Any
    loss: Any

    @property
    def flops(self) -> Any:
        """C = 6 N D."""
        return FLOPS_PER_WEIGHT * self.parameters * self.tokens

    def take(self, chosen: Any) -> Points:
        """Those of a mask or of indices."""
        names = tuple(np.array(self.names, object)[chosen])
        return Points(names, self.parameters[chosen], self.tokens[chosen], self.loss[chosen])


def results(curves: Iterable[Curve]) -> Points:
    """What each run came to."""
    rows = [
        (curve.name, curve.parameters, curve.tokens[-1], curve.losses[-1] if curve.result is None else curve.result)
        for curve in curves
    ]
    names, *columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Points(tuple(names), *(np.array(column, float) for column in columns))


def once(curves: Sequence[Curve]) -> list[Curve]:
    """The runs without those that have size, tokens and loss of an earlier one: a file that is given twice.

    A run that was made again has another loss, and stays.
    """
    points = results(curves)
    different = zip(points.parameters, points.tokens, points.loss, strict=True)
    first: dict[tuple[float, ...], Curve] = {}
    for key, curve in zip(different, curves, strict=True):
        first.setdefault(key, curve)
    return list(first.values())


def read_csv(path: Path) -> tuple[list[Curve], int]:
    """(runs, rows left out) of a CSV file with a header.

    Columns: params, loss, and tokens or flops (6 N D); optional run, of which each value is a run with its records as
    rows, and outlier, where 1 leaves the row out. Raises PlanError with path and line.
    """
    records: dict[str, list[tuple[float, float, float]]] = {}
    left_out = 0
    for line, row in _rows(path):
        if (row.get("outlier") or "0").strip().lower() not in ("0", "0.0", "false", "no", ""):
            left_out += 1
            continue
        name = row.get("run") or f"line {line}"
        records.setdefault(name, []).append(_record(row, f"{path}:{line}"))
    curves = []
    for name, rows in records.items():
        sizes = {size for size, _, _ in rows}
        if len(sizes) > 1:
            raise PlanError(f"{path}: the run {name} has {len(sizes)} values of params; a run has one size")
        _, tokens, losses = np.array(sorted(rows)).T
        curves.append(Curve(name, sizes.pop(), tokens, losses))
    return curves, left_out


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            header = reader.fieldnames or []
            missing = [name for name in ("params", "loss") if name not in header]
            if missing or not {"tokens", "flops"} & set(header):
                raise PlanError(
                    f"{path}: the header has {', '.join(header) or 'no columns'}; params, loss, and tokens or flops "
                    "are needed (and run and outlier may stand)"
                )
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"{path} cannot be read: {error}") from None


def _record(row: dict[str, str], place: str) -> tuple[float, float, float]:
    """(parameters, tokens, loss) of a row."""
    found = {}
    for name in ("params", "loss", "tokens", "flops"):
        text = row.get(name)
        if text is None or not text.strip():
            continue
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = float("nan")
        if not 0 < found[name] < float("inf"):
            raise PlanError(f"{place}: {name} = {text} is not a number above 0; correct it or mark the row outlier = 1")
    if not {"params", "loss"} <= set(found) or not {"tokens", "flops"} & set(found):
        raise PlanError(f"{place}: params, loss, and tokens or flops are needed in each row")
    tokens = found.get("tokens") or found["flops"] / FLOPS_PER_WEIGHT / found["params"]
    return found["params"], tokens, found["loss"]

"""How two checkpoints differ: settings, what is counted, and each tensor; `megaxf checkpoint diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from megaxf.checkpoint.files import Place
from megaxf.checkpoint.manifest import read_file
from megaxf.checkpoint.tensors import CONTENTS, TensorFiles
from megaxf.checkpoint.weights import CONFIG, TENSORS, read_state_file

Settings = Mapping[str, Any]
COUNTED = ("step", "optimizer_step", "counters", "extra")
"""What state.json has beside the shapes."""
BRIEF = 60
"""Characters of a setting that are shown."""


class Pair:
    """Two checkpoints, open to be compared. Raises DamagedCheckpoint naming a file that is not what was written."""

    def __init__(self, a: Place, b: Place) -> None:
        self.a, self.b = a, b
        self.tensors = [TensorFiles(path / TENSORS, read_file(path, f"{TENSORS}/{CONTENTS}")) for path in (a, b)]

    def same_shape(self) -> list[str]:
        """Keys of the tensors that can be compared: name and part."""
        first, second = (one.shapes for one in self.tensors)
        return [key for key, shape in first.items() if second.get(key) == shape]

    def bytes_to_read(self) -> int:
        """Of both."""
        return sum(8 * self.tensors[0].shapes[key].numel() for key in self.same_shape())


def compare(pair: Pair, advance: Callable[[int], object]) -> dict[str, Any]:
    """Everything in which two checkpoints differ, as plain data; `advance` is told the bytes read."""
    first, second = (one.shapes for one in pair.tensors)
    shapes = {key: [list(one[key]) if key in one else None for one in (first, second)] for key in {**first, **second}}
    tensors = []
    for key in pair.same_shape():
        a, b = (one.read(key) for one in pair.tensors)
        tensors.append({"tensor": key, **distance(a, b)})
        advance(a.nbytes + b.nbytes)
    other = {key: given for key, given in shapes.items() if given[0] != given[1]}
    config, counted = ([*differences(*both)] for both in (_configs(pair), _counted(pair)))
    equal = not other and not config and not counted and all(one["equal"] for one in tensors)
    return {
        "a": str(pair.a),
        "b": str(pair.b),
        "equal": equal,
        "config": config,
        "state": counted,
        "shapes": other,
        "tensors": tensors,
    }


def distance(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """The largest |a - b| and the largest |a - b| / max(|a|, |b|) of two fp32 tensors, and whether they are one."""
    apart = (a - b).abs()
    larger = torch.maximum(a.abs(), b.abs())
    relative = torch.where(apart == 0, 0.0, apart / larger)
    largest = [float(values.max()) if values.numel() else 0.0 for values in (apart, relative)]
    return {"equal": torch.equal(a, b), "absolute": largest[0], "relative": largest[1]}


def _configs(pair: Pair) -> tuple[Settings, Settings]:
    a, b = (yaml.safe_load(read_file(path, CONFIG)) or {} for path in (pair.a, pair.b))
    return a, b


def _counted(pair: Pair) -> tuple[Settings, Settings]:
    a, b = ({name: read_state_file(path).get(name) for name in COUNTED} for path in (pair.a, pair.b))
    return a, b


def differences(old: Settings, new: Settings, above: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) of all settings that differ; None for one that is not there."""
    for name in [*old, *(name for name in new if name not in old)]:
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from differences(was, now, f"{above}{name}.")
        elif was != now:
            yield f"{above}{name}", was, now


def show(found: dict[str, Any], top: int, console: Console) -> None:
    """`compare` for people: the `top` most different tensors."""
    apart = sorted((one for one in found["tensors"] if not one["equal"]), key=lambda one: -one["relative"])
    same = len(found["tensors"]) - len(apart)
    lines = [f"a: {found['a']}", f"b: {found['b']}"]
    lines += [f"{key}: {_brief(was)} -> {_brief(now)}" for key, was, now in found["config"] + found["state"]]
    lines += [f"{key}: {_shape(was)} in a, {_shape(now)} in b" for key, (was, now) in found["shapes"].items()]
    rows = Table(box=box.SIMPLE_HEAD)
    for name in ("tensor", "largest difference", "largest relative"):
        rows.add_column(name, justify="left" if name == "tensor" else "right")
    for one in apart[:top]:
        rows.add_row(one["tensor"], f"{one['absolute']:.3g}", f"{one['relative']:.3g}")
    more = f", {len(apart) - top} of them not shown" if len(apart) > top else ""
    verdict = "equal to the bit" if found["equal"] else f"{same} tensors are equal, {len(apart)} differ{more}"
    for part in (*lines, *([rows] if apart else []), verdict):
        console.print(part, highlight=False, soft_wrap=True, markup=False)


def _brief(value: Any) -> str:
    """Of long lists the beginning: what tells them apart is in the JSON."""
    text = str(value)
    return text if len(text) <= BRIEF else f"{text[:BRIEF]} ..."


def _shape(shape: list[int] | None) -> str:
    return "not there" if shape is None else str(shape)

"""The state of ZeRO 1 to 3 in DeepSpeed's files: flat shares of the data-parallel ranks (arXiv 1910.02054).

Each rank's file has, for each parameter group, what the rank owns of the group's flat fp32 weights and of AdamW's
moments. ZeRO 1 and 2 cut the whole group, so that a parameter may begin on one rank and end on the next; the file says
which elements of which parameter a share has. ZeRO 3 cuts every parameter into equal pieces, the last filled up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import OptimizerState
from megaxf.convert.torch_files import StandIn, read_torch_file
from megaxf.models.weights import Weights

OPTIMIZER_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MOMENTS = ("exp_avg", "exp_avg_sq")
Shapes = dict[str, torch.Size]
Pieces = Iterator[tuple[str, dict[str, torch.Tensor]]]
"""Parameter name, and a piece of each of its flat tensors by "fp32" and the names of the moments."""


class Fragments(Weights):
    """Tensors whose flat elements lie in several files, in order."""

    def __init__(self, shapes: Shapes, fragments: Mapping[str, list[torch.Tensor]]) -> None:
        self.shapes, self._fragments = shapes, fragments

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        return torch.cat(self._fragments[name])[: shape.numel()].view(shape)


def read_zero(folder: Path, shapes_of_groups: list[Shapes]) -> tuple[Weights, OptimizerState]:
    """fp32 weights and AdamW's state from the files of all ranks.

    shapes_of_groups: the whole shapes of the parameters of each group, in DeepSpeed's order.
    Raises ConvertError where files are missing, or do not hold all elements.
    """
    states = [read_torch_file(path)["optimizer_state_dict"] for path in _files(folder)]
    shapes = {name: shape for group in shapes_of_groups for name, shape in group.items()}
    counts = {_largest(state["partition_count"]) for state in states}
    if counts != {len(states)}:
        raise ConvertError(f"{folder} has *_optim_states.pt of {len(states)} ranks; it was saved by {_largest(counts)}")
    found: dict[str, dict[str, list[torch.Tensor]]] = {key: {name: [] for name in shapes} for key in ("fp32", *MOMENTS)}
    steps = set()
    for state in states:
        whole = _stage(state) == 3
        base = state["optimizer_state_dict" if whole else "base_optimizer_state"]
        steps |= {int(group["step"]) for group in base["state"].values()}
        for name, pieces in _of_stage_3(state, base, shapes_of_groups, len(states)) if whole else _by_map(state, base):
            for key, piece in pieces.items():
                found[key][name].append(piece)
    _check(folder, shapes, found["fp32"])
    moments: dict[str, Weights] = {key: Fragments(shapes, found[key]) for key in MOMENTS}
    return Fragments(shapes, found["fp32"]), OptimizerState(max(steps, default=0), moments)


def _files(folder: Path) -> list[Path]:
    """The ranks' files in the order of the ranks."""
    found = {tuple(map(int, match.groups())): path for path in folder.iterdir() if (match := _matches(path))}
    if any(model_part for _, model_part in found):
        raise ConvertError(
            f"{folder} was saved with tensor parallelism of DeepSpeed (mp_rank_01); make it universal with "
            "deepspeed.checkpoint.ds_to_universal and convert that"
        )
    if not found:
        raise ConvertError(f"{folder} has no *_optim_states.pt, in which ZeRO keeps the fp32 weights")
    return [found[key] for key in sorted(found)]


def _matches(path: Path) -> re.Match[str] | None:
    return OPTIMIZER_FILE.fullmatch(path.name)


def _stage(state: Mapping[str, Any]) -> int:
    """Of ZeRO; DeepSpeed writes an enumeration."""
    stage = state["zero_stage"]
    return int(stage.arguments[0]) if isinstance(stage, StandIn) else int(stage)


def _largest(count: Any) -> int:
    """DeepSpeed writes one number for all groups or one for each."""
    return max(count) if isinstance(count, list | set) else int(count)


def _by_map(state: Mapping[str, Any], base: Mapping[str, Any]) -> Pieces:
    """What ZeRO 1 and 2 say themselves about a rank's shares."""
    for group, places in enumerate(state["param_slice_mappings"]):
        flat = {"fp32": state["single_partition_of_fp32_groups"][group], **_moments(base, group)}
        for name, place in places.items():
            yield name, {key: tensor[place.start :][: place.numel] for key, tensor in flat.items()}


def _of_stage_3(state: Mapping[str, Any], base: Mapping[str, Any], groups: list[Shapes], ranks: int) -> Pieces:
    """Pieces of equal length of all parameters of a group, one behind the other."""
    for group, shapes in enumerate(groups):
        flat = {"fp32": state["fp32_flat_groups"][group], **_moments(base, group)}
        start = 0
        for name, shape in shapes.items():
            length = -(-shape.numel() // ranks)
            yield name, {key: tensor[start:][:length] for key, tensor in flat.items()}
            start += length


def _moments(base: Mapping[str, Any], group: int) -> dict[str, torch.Tensor]:
    """AdamW's, none before the first step."""
    return {key: base["state"][group][key] for key in MOMENTS if group in base["state"]}


def _check(folder: Path, shapes: Shapes, fragments: Mapping[str, list[torch.Tensor]]) -> None:
    sizes = {name: sum(map(len, pieces)) for name, pieces in fragments.items()}
    problems = [
        f"{name} has {sizes[name]:,} elements in the files, and its shape {list(shape)} {shape.numel():,}"
        for name, shape in shapes.items()
        if sizes[name] < shape.numel()
    ]
    if problems:
        raise ConvertError.listing(f"the *_optim_states.pt of {folder} do not hold whole parameters", problems)

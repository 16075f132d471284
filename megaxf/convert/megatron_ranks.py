"""Megatron-LM's layout `torch`: the files of its ranks as one model, stages in a row, shares joined.

mp_rank_01/model_optim_rng.pt           tensor-parallel rank 1
mp_rank_01_002/model_optim_rng.pt       with a pipeline: its stage 2
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.megatron_names import HEAD, INNER, LAYER, TABLE, Part, parts, share, whole
from megaxf.convert.megatron_settings import arguments_in
from megaxf.convert.names import parameter_shapes
from megaxf.convert.torch_files import read_torch_file
from megaxf.models.llama_config import Config
from megaxf.models.weights import Weights

FILE = "model_optim_rng.pt"
RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?")
CHUNK = re.compile(r"model(\d*)")
"""Keys of a file: the model, or with an interleaved pipeline its chunks on the stage."""
LOCAL = {part.local: part.theirs for part in INNER if part.local}


class Shares(Protocol):
    """Megatron-LM's tensors by their names in the whole model, with the shares of all tensor-parallel ranks."""

    @property
    def shapes(self) -> dict[str, list[torch.Size]]:
        """Of the shares of each tensor."""
        ...

    def __getitem__(self, name: str, /) -> list[torch.Tensor]:
        """Read when asked for."""
        ...


class RankShares(dict[str, list[torch.Tensor]]):
    """Of files that are mapped into memory."""

    @property
    def shapes(self) -> dict[str, list[torch.Size]]:
        """Of the shares of each tensor."""
        return {name: [share.shape for share in shares] for name, shares in self.items()}


Stages = list[list[dict[str, torch.Tensor]]]
"""Megatron-LM's tensors by [part of the model, in the order of its layers][tensor-parallel rank]."""


def recognises(folder: Path) -> bool:
    """Whether a folder of an iteration is in this layout."""
    return any(folder.glob(f"mp_rank_*/{FILE}"))


def read_ranks(folder: Path) -> tuple[dict[str, Any], RankShares]:
    """The arguments of the run, and the weights of all ranks. Raises ConvertError where a file is missing."""
    found = {
        (int(match[1]), int(match[2] or 0)): path for path in folder.iterdir() if (match := RANK.fullmatch(path.name))
    }
    files = {place: read_torch_file(path / FILE) for place, path in sorted(found.items())}
    place, content = next(iter(files.items()))
    arguments = arguments_in(content, found[place] / FILE)
    ranks, stages = (int(arguments[f"{axis}_model_parallel_size"]) for axis in ("tensor", "pipeline"))
    places = {(rank, stage) for rank in range(ranks) for stage in range(stages)}
    if set(files) != places:
        problems = [f"rank {rank} of stage {stage} is missing" for rank, stage in sorted(places - set(files))]
        problems += [f"rank {rank} of stage {stage} is too many" for rank, stage in sorted(set(files) - places)]
        raise ConvertError.listing(f"{folder} was saved by {ranks} tensor-parallel ranks x {stages} stages", problems)
    # Interleaved, the first chunks of all stages come before their second ones.
    chunks = sorted((int(match[1] or 0), key) for key in files[0, 0] if (match := CHUNK.fullmatch(key)))
    return arguments, numbered(
        [
            [_tensors(files[rank, stage][chunk]) for rank in range(ranks)]
            for _, chunk in chunks
            for stage in range(stages)
        ]
    )


def _tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Without what Transformer Engine keeps beside them."""
    return {name: tensor for name, tensor in state.items() if not name.endswith("_extra_state")}


class SharedWeights(Weights):
    """Our tensors, made of the ranks' shares when asked for.

    Raises ConvertError where tensors are missing, superfluous or of wrong shapes, in Megatron-LM's names, and where
    copies differ that have to be equal.
    """

    def __init__(self, shares: Shares, config: Config, folder: Path) -> None:
        self._config, self._folder, self._shares = config, folder, shares
        self._parts = parts(config)
        self.shapes = parameter_shapes(config)
        self._check()
        self._sources = {
            ours: (name, number) for name, part in self._parts.items() for number, ours in enumerate(part.ours)
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        theirs, number = self._sources[name]
        part, shares = self._parts[theirs], self._shares[theirs]
        if part.cut == "none" and not all(torch.equal(shares[0], other) for other in shares[1:]):
            raise ConvertError(
                f"{theirs} differs between the tensor-parallel ranks of {self._folder}, which all hold it"
            )
        # Only the vocabulary is filled up.
        return whole(part, shares, self._config, number)[: self.shapes[name][0]]

    def _check(self) -> None:
        found = dict(self._shares.shapes)
        if self._config.tie_word_embeddings and HEAD in found:  # The last stage has the table too.
            if TABLE in found and not all(map(torch.equal, self._shares[HEAD], self._shares[TABLE])):
                raise ConvertError(f"{self._folder}: the arguments tie the embeddings, yet {HEAD} differs from {TABLE}")
            del found[HEAD]
        problems = [f"{name} is missing" for name in self._parts if name not in found]
        problems += [f"{name} is not part of the model" for name in found if name not in self._parts]
        for name, shares in found.items():
            if name in self._parts:
                for rank, (own, wanted) in enumerate(
                    zip(shares, self._expected(self._parts[name], shares), strict=True)
                ):
                    if own != wanted:
                        problems.append(f"{name} of rank {rank} is {list(own)}, the arguments say {list(wanted)}")
        if problems:
            raise ConvertError.listing(f"the tensors of {self._folder} are not those of its arguments", problems)

    def _expected(self, part: Part, shares: list[torch.Size]) -> list[torch.Size]:
        """The shapes of the shares of all ranks."""
        ours = [torch.empty(self.shapes[name], device="meta") for name in part.ours]
        if part.cut == "rows":
            rows = max(sum(shape[0] for shape in shares), len(ours[0]))
            ours = [torch.empty(rows, *ours[0].shape[1:], device="meta")]
        return [share(part, ours, self._config, rank, len(shares)).shape for rank in range(len(shares))]


def numbered(stages: Stages) -> RankShares:
    """The shares of each tensor by its name in the whole model: a stage's own numbers begin anew."""
    found = RankShares()
    before = 0
    for ranks in stages:
        layers = 0
        for name in dict.fromkeys(name for state in ranks for name in state):
            shares = [state[name] for state in ranks if name in state]
            if name.startswith(LAYER):
                number, _, end = name.removeprefix(LAYER).partition(".")
                layers = max(layers, int(number) + 1)
                name = f"{LAYER}{before + int(number)}.{LOCAL.get(end, end)}"
            found[name] = shares
        before += layers
    return found

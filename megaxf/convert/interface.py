"""What every format gives and takes: a trained model whose weights are not yet read.

A format is a file of this folder, named in `registry.FORMATS`. It has the first two functions where models are read
from it, the third where they are written to it:

    recognises(path: Path) -> bool                          whether a path looks like it; cheap
    read(path: Path) -> Trained                             raises ConvertError for what is damaged or incomplete
    write(model: Trained, out: Path, form: Form) -> int     gives the bytes of tensors written; all of them or nothing

Names and shapes of `Trained.weights` are those of megaxf's model of `Trained.config`, whatever the files call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from megaxf.convert.errors import ConvertError
from megaxf.models.llama import Config


class Weights(Protocol):
    """Tensors by name, of which the shapes are known before any is read."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Of every tensor, in the model's order."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor:
        """One whole tensor, read when asked for and not kept."""
        ...


class Trained(NamedTuple):
    """A model with its weights, its tokenizer, and what ends a text."""

    config: Config
    weights: Weights
    tokenizer: Path | None
    """A folder that `load_tokenizer` opens."""
    dtype: str
    """What the weights were trained or stored in: the narrowest of bfloat16, float16 and float32 that loses nothing."""
    eos_ids: list[int]
    """Ids that end a text, the most usual first; of a checkpoint that does not say, its tokenizer's end of document."""
    path: Path = Path()
    """Where it was found: of a run folder, the newest checkpoint in it."""
    format: str = ""
    """The name of the format in `registry.FORMATS`, or "megaxf" for a checkpoint."""


class Form(NamedTuple):
    """How a target is to be written."""

    dtype: str | None = None
    """None: as the model was trained."""
    max_shard_size: int | None = None
    """Bytes of one file; None: the format's usual."""
    overwrite: bool = False
    """Replace an earlier output as a whole."""


class _Counting(Mapping[str, torch.Tensor]):
    """The same tensors, with a count of how often each was read."""

    def __init__(self, weights: Weights):
        self._weights, self.shapes = weights, weights.shapes
        self.reads = dict.fromkeys(self.shapes, 0)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._weights[name]
        self.reads[name] += 1
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


@contextmanager
def each_used_once(weights: Weights) -> Iterator[Weights]:
    """The weights for a target to read from, inside the block that publishes its output.

    Raises ConvertError at the end of the block with every tensor that was not read exactly once.
    """
    counting = _Counting(weights)
    yield counting
    problems = [f"{name} was used {reads} times" for name, reads in counting.reads.items() if reads != 1]
    if problems:
        raise ConvertError.listing("every tensor has to be used exactly once", problems)

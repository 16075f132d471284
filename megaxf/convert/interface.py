"""What every format gives and takes: a trained model whose weights are not yet read.

A format is a file of this folder, named in `registry.FORMATS`. It has the first two functions where models are read
from it, the others where they are written to it:

    recognises(path: Path) -> bool                          whether a path looks like it; cheap
    read(path: Path) -> Trained                             raises ConvertError for what is damaged or incomplete
    write(model: Trained, out: Path, form: Form) -> Written the whole output, or nothing
    reopen(model: Trained, out: Path) -> Trained            the output, with its own weights, to compare the two sides
    rounded(name: str, tensor, dtype: str) -> torch.Tensor  what a tensor of the model is in the output, in fp32

Names and shapes of `Trained.weights` are those of megaxf's model of `Trained.config`, whatever the files call them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from upath import UPath

from megaxf.convert.errors import ConvertError
from megaxf.models.weights import Weights


class OptimizerState(NamedTuple):
    """What AdamW keeps beside the weights."""

    step: int
    """Updates made so far."""
    moments: dict[str, Weights]
    """fp32 tensors of every parameter: "exp_avg" and "exp_avg_sq"; or nothing, which is zeros."""


class Trained(NamedTuple):
    """A model with its weights, its tokenizer, and what ends a text."""

    config: Any
    """The Config of a family (megaxf.models.registry.ModelConfig)."""
    weights: Weights
    tokenizer: Path | None
    """A folder that `load_tokenizer` opens."""
    dtype: str
    """What the weights were trained or stored in: the narrowest of bfloat16, float16 and float32 that loses nothing."""
    eos_ids: list[int]
    """Ids that end a text, the most usual first; of a checkpoint that does not say, its tokenizer's end of document."""
    path: Path | UPath = Path()
    """Where it was found: of a run folder, the newest checkpoint in it, which may lie in a store."""
    format: str = ""
    """The name of the format in `registry.FORMATS`, or "megaxf" for a checkpoint."""
    optimizer: OptimizerState | None = None
    """Of sources that hold it."""


class Form(NamedTuple):
    """How a target is to be written."""

    dtype: str | None = None
    """None: as the model was trained."""
    max_shard_size: int | None = None
    """Bytes of one file; None: the format's usual."""
    overwrite: bool = False
    """Replace an earlier output as a whole."""
    told: Callable[[int], None] = lambda size: None
    """Hears how many elements were read, as it goes on."""
    inspect: Callable[[Path], None] = lambda made: None
    """Sees the whole output before it has its name; raises ConvertError where it is not to get it."""
    tensor_parallel_size: int | None = None
    """Ranks that share each matrix, where the format has a file for each rank; 1 by default."""
    pipeline_parallel_size: int | None = None
    """Ranks, or stages, that share the layers, likewise."""


class Written(NamedTuple):
    """What a target has made."""

    size: int
    """Bytes of tensors."""
    dtype: str
    notes: list[str]
    """What a user should know about the output, a sentence each."""


def choose_dtype(model: Trained, form: Form, known: Iterable[str]) -> str:
    """The dtype to write. Raises ConvertError where the format has it not."""
    dtype, known = form.dtype or model.dtype, list(known)
    if dtype not in known:
        raise ConvertError(f"--dtype {dtype} is not one that this format has; use one of {', '.join(known)}")
    return dtype


def refuse_options(form: Form, target: str, reason: str, *options: str) -> None:
    """Raises ConvertError where one of these options is given, which have no effect for the target."""
    for option in options:
        if getattr(form, option) is not None:
            name = option.replace("_", "-")
            raise ConvertError(f"--{name} has no effect with --to {target}: {reason}; remove it")


class _Counting(Weights):
    """The same tensors, with a count of how often each was read."""

    def __init__(self, weights: Weights, told: Callable[[int], None]):
        self._weights, self._told, self.shapes = weights, told, weights.shapes
        self.reads = dict.fromkeys(self.shapes, 0)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._weights[name]
        self.reads[name] += 1
        self._told(tensor.numel())
        return tensor

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        for piece in _ahead(self._weights.pieces(name)):
            self._told(piece.numel())
            yield piece
        self.reads[name] += 1


def _ahead(pieces: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The same, each read by another thread while the one before is cast and written."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece


@contextmanager
def each_used_once(weights: Weights, told: Callable[[int], None]) -> Iterator[Weights]:
    """The weights for a target to read from, inside the block that publishes its output.

    told: hears how many elements were read.
    Raises ConvertError at the end of the block with every tensor that was not read exactly once.
    """
    counting, threads = _Counting(weights, told), torch.get_num_threads()
    # A piece is too small to be shared: threads that wait for each other cost more than they bring.
    torch.set_num_threads(1)
    try:
        yield counting
    finally:
        torch.set_num_threads(threads)
    problems = [f"{name} was used {reads} times" for name, reads in counting.reads.items() if reads != 1]
    if problems:
        raise ConvertError.listing("every tensor has to be used exactly once", problems)

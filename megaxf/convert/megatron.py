"""Megatron-LM's checkpoints of Llama models: read in its layouts `torch` and `torch_dist`, written here in `torch`.

    latest_checkpointed_iteration.txt       10, or "release"
    iter_0000010/                           what megatron_ranks (torch) or megatron_boxes (torch_dist) say
    config.json, tokenizer.json, ...        as in a Hugging Face folder: Megatron-LM does not keep them

There are the arguments of the run and weights, which are fused, in `torch` cut and numbered anew on each stage, the
vocabulary filled up. So where neither config.json, nor a tokenizer, nor the arguments say how many tokens there are, a
folder is refused. Weights are read, the optimizer's state is not.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import torch

from data_pipeline.tokenizer.base import load_tokenizer
from megaxf.convert import casting, huggingface, megatron_boxes, megatron_ranks
from megaxf.convert.casting import DTYPES
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_folder
from megaxf.convert.interface import Form, Trained, Written, choose_dtype, each_used_once, refuse_options
from megaxf.convert.megatron_names import HEAD, LAYER, TABLE, Part, parts, share
from megaxf.convert.megatron_ranks import FILE, SharedWeights, Shares, read_ranks
from megaxf.convert.megatron_settings import dtype_name, padded_size, read_arguments, write_arguments
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.convert.torch_files import save
from megaxf.models.llama_config import Config
from megaxf.models.registry import ModelConfig
from megaxf.models.weights import Weights

LATEST = "latest_checkpointed_iteration.txt"
WRITTEN = ("bfloat16", "float32")
rounded = casting.rounded


def recognises(path: Path) -> bool:
    """Whether a path is a folder of iterations, or of one."""
    return _iteration_folder(path) is not None


def read(path: Path) -> Trained:
    """The model of a folder; tensors are read when asked for.

    Raises ConvertError for a folder that is incomplete or damaged, a model that megaxf has not, and names and shapes
    that are not those of the arguments.
    """
    folder = _iteration_folder(path)
    if folder is None:
        raise ConvertError(f"{path / LATEST} names no folder of an iteration")
    shares: Shares
    arguments, shares = megatron_boxes.read_dist(folder) if megatron_boxes.recognises(folder) else read_ranks(folder)
    place = next((place for place in (folder, folder.parent) if huggingface.recognises(place)), None)
    about = huggingface.read_description(place) if place else None
    vocab_size: int | None
    if about:
        vocab_size, tokenizer, eos_ids = about.config.vocab_size, about.tokenizer, about.eos_ids
    else:
        tokenizer, eos_ids = huggingface.tokenizer_in(folder) or huggingface.tokenizer_in(folder.parent), []
        vocab_size = load_tokenizer(tokenizer).vocab_size if tokenizer else arguments.get("vocab_size")
    if not vocab_size:
        raise ConvertError(
            f"{folder} does not say how many of its {arguments.get('padded_vocab_size')} rows are tokens; copy the "
            "model's config.json or tokenizer.json into it"
        )
    config = read_arguments(arguments, vocab_size, str(folder))
    if about and about.config != config:
        _raise_differences(about.config, config, folder)
    weights = SharedWeights(shares, config, folder)
    return Trained(config, weights, tokenizer, dtype_name(shares[TABLE][0]), eos_ids, folder, "megatron")


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write a folder for so many tensor-parallel ranks and stages; one whole tensor is in memory at a time.

    Names are those of Transformer Engine's layers, Megatron-LM's default. Rows that fill the vocabulary up repeat the
    last one, as its own converter has it. Raises ConvertError where Megatron-LM has no word for the model, it cannot be
    cut so, or `out` is in the way.
    """
    refuse_options(form, "megatron", "there are as many files as ranks", "max_shard_size")
    tensor, stages = (1 if size is None else size for size in (form.tensor_parallel_size, form.pipeline_parallel_size))
    return write_release(model, out, form, tensor, stages, _put_ranks)


Put = Callable[["Cutter", Namespace, Path], None]
"""Writes the tensors and the arguments of the run into a folder."""


def write_release(model: Trained, out: Path, form: Form, tensor: int, stages: int, put: Put) -> Written:
    """Write a folder of one iteration, as `write` does, its tensors by `put`."""
    config, dtype = model.config, choose_dtype(model, form, WRITTEN)
    if not isinstance(config, Config):
        raise ConvertError(f"model.family = {config.family} is not written for Megatron-LM, only llama")
    _check_degrees(config, tensor, stages)
    arguments = write_arguments(config, dtype, tensor, stages)
    wanted = parameter_shapes(config)
    check_names(model.weights.shapes, wanted, str(model.path))
    size = sum(shape.numel() for shape in wanted.values()) * DTYPES[dtype].itemsize
    with (
        # What a stage is made of lies in scratch files until the stage is written.
        new_folder(out, form, mark=LATEST, needed=size + size // stages, inner="release") as folder,
        each_used_once(model.weights, form.told) as weights,
        TemporaryDirectory(dir=folder) as scratch,
    ):
        huggingface.describe(model, folder, dtype)
        put(Cutter(config, weights, dtype, tensor, Path(scratch)), arguments, folder / "release")
        (folder / LATEST).write_text("release", encoding="utf-8")
    return Written(size, dtype, [])


def contents(arguments: Namespace) -> dict[str, Any]:
    """What is beside the tensors of a release."""
    return {"args": arguments, "checkpoint_version": 3.0, "iteration": 0}


def _put_ranks(cutter: Cutter, arguments: Namespace, folder: Path) -> None:
    stages = arguments.pipeline_model_parallel_size
    for stage, states in enumerate(_stages(cutter, stages)):
        for rank, state in enumerate(states):
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
            save({**contents(arguments), "model": state}, folder / name / FILE)


def reopen(model: Trained, out: Path) -> Trained:
    """The folder that `model` was written to."""
    return read(out)


def _iteration_folder(path: Path) -> Path | None:
    """The folder of the iteration that a path means."""
    if (path / LATEST).is_file():
        latest = (path / LATEST).read_text(encoding="utf-8").strip()
        path = path / (f"iter_{int(latest):07d}" if latest.isdigit() else latest)
    return path if megatron_ranks.recognises(path) or megatron_boxes.recognises(path) else None


def _raise_differences(described: ModelConfig, config: Config, folder: Path) -> None:
    ours, theirs = described.model_dump(), config.model_dump()
    problems = [f"{key} = {ours[key]}, and the arguments say {theirs[key]}" for key in ours if ours[key] != theirs[key]]
    raise ConvertError.listing(f"config.json beside {folder} is of another model", problems)


def _check_degrees(config: Config, tensor: int, stages: int) -> None:
    """Raises ConvertError where Megatron-LM would not cut the model so."""
    if min(tensor, stages) < 1:
        raise ConvertError("--tensor-parallel-size and --pipeline-parallel-size are numbers of ranks: 1 or more")
    groups = config.num_key_value_heads
    problems = [
        f"--tensor-parallel-size {tensor} does not divide {name} = {getattr(config, name)}"
        for name in ("num_attention_heads", "intermediate_size")
        if getattr(config, name) % tensor
    ]
    if groups % tensor and tensor % groups:
        problems.append(f"--tensor-parallel-size {tensor} and num_key_value_heads = {groups}: none divides the other")
    if config.num_hidden_layers % stages:
        problems.append(
            f"--pipeline-parallel-size {stages} does not divide num_hidden_layers = {config.num_hidden_layers}"
        )
    if problems:
        raise ConvertError.listing("Megatron-LM cannot cut the model so", problems)


class Cutter:
    """Makes Megatron-LM's tensors, cut for the ranks; what has been cut lies on the disk."""

    def __init__(self, config: Config, weights: Weights, dtype: str, ranks: int, scratch: Path) -> None:
        self.config, self._weights, self._dtype = config, weights, DTYPES[dtype]
        self._ranks, self._scratch = ranks, scratch

    def cut(self, part: Part) -> list[torch.Tensor]:
        """The shares of all ranks."""
        shares = self._shares(part)
        return [self._on_disk(tuple(share.shape)).copy_(share) for share in shares]

    def stack(self, layers: Sequence[Part]) -> torch.Tensor:
        """The same tensor of all layers as one, of one rank."""
        held: torch.Tensor | None = None
        for number, part in enumerate(layers):
            (whole,) = self._shares(part)
            held = self._on_disk((len(layers), *whole.shape)) if held is None else held
            held[number] = whole
        assert held is not None
        return held

    def _shares(self, part: Part) -> list[torch.Tensor]:
        tensors = [self._weights[name].to(self._dtype) for name in part.ours]
        if part.cut == "rows":
            missing = padded_size(self.config.vocab_size, self._ranks) - len(tensors[0])
            tensors = [torch.cat([tensors[0], tensors[0][-1:].expand(missing, -1)])]
        return [share(part, tensors, self.config, rank, self._ranks) for rank in range(self._ranks)]

    def _on_disk(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in a file without a name, which goes with it."""
        file = self._scratch / uuid4().hex
        held = torch.from_file(str(file), shared=True, size=math.prod(shape), dtype=self._dtype).view(shape)
        file.unlink()
        return held


def _stages(cutter: Cutter, stages: int) -> Iterator[list[dict[str, torch.Tensor]]]:
    """The tensors of each stage by rank, layers numbered from 0 on each; a tied table is on the last stage too."""
    config = cutter.config
    of_stage = config.num_hidden_layers // stages
    made = parts(config)
    table = cutter.cut(made.pop(TABLE))
    for stage in range(stages):
        last = stage == stages - 1
        found = {TABLE: table} if stage == 0 else {}
        for name, part in made.items():
            if name.startswith(LAYER):
                number, _, end = name.removeprefix(LAYER).partition(".")
                if int(number) // of_stage == stage:
                    found[f"{LAYER}{int(number) % of_stage}.{end}"] = cutter.cut(part)
            elif last:
                found[name] = cutter.cut(part)
        if last and stages > 1 and config.tie_word_embeddings:
            found[HEAD] = table
        yield [{name: shares[rank] for name, shares in found.items()} for rank in range(len(table))]

"""Export to and import from a Hugging Face folder. Names and shapes of parameters are the same, nothing is permuted.

export(config, weights, tokenizer_folder, "out/hf", dtype="bfloat16")
config, weights, tokenizer_folder = import_folder("out/hf")
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from megaxf.convert import architectures
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_folder
from megaxf.convert.safetensors_files import SafetensorsFolder, write_files
from megaxf.models.llama import Config, Model

CONFIG, GENERATION = "config.json", "generation_config.json"
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""Tables that old exports contain and that follow from config.json."""
NO_IDS: dict[str, int | None] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


class Weights(Protocol):
    """Tensors by name, of which the shapes are known before any is read."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Of every tensor."""
        ...

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor."""
        ...


class Imported(NamedTuple):
    """What a Hugging Face folder holds."""

    config: Config
    weights: Weights
    tokenizer_folder: Path | None
    dtype: str
    """The narrowest of bfloat16 and float32 that holds the weights in the files."""
    eos_ids: list[int]
    """Ids that end a text, from generation_config.json and else config.json."""


def export(
    config: Config,
    weights: Weights,
    tokenizer_folder: str | Path | None,
    out: str | Path,
    *,
    dtype: str = "bfloat16",
    max_shard_size: int = 5_000_000_000,
    overwrite: bool = False,
) -> int:
    """Write a folder that `transformers` opens; gives the bytes of its tensors. One tensor is in memory at a time.

    dtype: "bfloat16" or "float32". max_shard_size: bytes of a file, more only where one tensor is larger.
    overwrite: replace an earlier export as a whole.
    Raises ConvertError where no architecture fits, a weight is missing, superfluous or of a wrong shape, the tokenizer
    does not fit into the vocabulary, or `out` is in the way.
    """
    wanted = parameter_shapes(config)
    check_names(weights.shapes, wanted, "the checkpoint")
    architectures.model_type(config)
    with new_folder(Path(out), overwrite=overwrite, mark=CONFIG) as folder:
        ids = NO_IDS if tokenizer_folder is None else _export_tokenizer(config, tokenizer_folder, folder)
        _write_json(folder / CONFIG, architectures.to_huggingface(config, ids, dtype))
        _write_json(folder / GENERATION, {key: value for key, value in ids.items() if value is not None})
        return write_files(folder, wanted, weights.__getitem__, dtype, max_shard_size)


def _export_tokenizer(config: Config, source: str | Path, folder: Path) -> dict[str, int | None]:
    size = load_tokenizer(source).vocab_size
    if size > config.vocab_size:
        raise ConvertError(
            f"{source}: the tokenizer has {size} tokens and model.vocab_size = {config.vocab_size}; it is of another "
            "model"
        )
    return export_tokenizer(source, folder, max_length=config.max_position_embeddings)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parameter_shapes(config: Config) -> dict[str, torch.Size]:
    """The parameters that a model of this configuration has; no memory is taken."""
    with torch.device("meta"):
        model = Model(config)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def check_names(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size], where: str) -> None:
    """Raises ConvertError with every tensor that is missing, not known, or of another shape."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is not part of the model" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(found[name])}, the configuration says {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        advice = ""
        if HEAD in wanted and HEAD not in found:
            advice = "if output and input embeddings are one matrix, config.json has to say tie_word_embeddings: true"
        raise ConvertError.listing(f"the tensors of {where} are not those of its configuration", problems, advice)


def import_folder(path: str | Path) -> Imported:
    """The model of a Hugging Face folder; tensors are read when asked for.

    Raises ConvertError for a folder that is incomplete or damaged, a model that megaxf has not, or names and shapes
    that do not fit config.json, listing all.
    """
    folder = Path(path)
    settings = _read_json(folder / CONFIG)
    config = architectures.from_huggingface(settings)
    files = SafetensorsFolder(folder)
    spare = {name for name in files if DERIVED.fullmatch(name)} | _tied_copy(config, files, folder)
    wanted = parameter_shapes(config)
    check_names({name: shape for name, shape in files.shapes.items() if name not in spare}, wanted, str(folder))
    dtype = "bfloat16" if files.dtypes == {"bfloat16"} else "float32"
    tokenizer = folder if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")) else None
    return Imported(config, _Selected(files, wanted), tokenizer, dtype, _eos_ids(folder, settings))


def is_folder(path: str | Path) -> bool:
    """Whether a path looks like a Hugging Face folder."""
    return (Path(path) / CONFIG).is_file()


def _tied_copy(config: Config, files: SafetensorsFolder, folder: Path) -> set[str]:
    """The output matrix where it is written beside the table that it is tied to, and equals it."""
    if not config.tie_word_embeddings or HEAD not in files or TABLE not in files:
        return set()
    if not torch.equal(files[HEAD], files[TABLE]):
        raise ConvertError(
            f"{folder}: config.json ties the embeddings (tie_word_embeddings: true), yet {HEAD} differs from {TABLE}; "
            "set it to false to use both, or remove the stale one"
        )
    return {HEAD}


class _Selected(Mapping[str, torch.Tensor]):
    """The tensors of a model among those of a folder, in the model's order."""

    def __init__(self, files: SafetensorsFolder, shapes: Mapping[str, torch.Size]):
        self._files, self.shapes = files, shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _eos_ids(folder: Path, settings: dict[str, Any]) -> list[int]:
    generation = _read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    ids = generation.get("eos_token_id", settings.get("eos_token_id"))
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConvertError(f"{path} is missing: this is not a Hugging Face folder") from None
    except ValueError as error:
        raise ConvertError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConvertError(f"{path} holds a {type(content).__name__}, not settings")
    return content

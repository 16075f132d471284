"""Export to and import from a Hugging Face folder, by the tables of the model's family.

write(model, Path("out/hf"), Form(dtype="bfloat16"))
model = read(Path("out/hf"))
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from megaxf.convert import casting, families
from megaxf.convert.casting import DTYPES
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_folder
from megaxf.convert.interface import Form, Trained, Written, choose_dtype, each_used_once
from megaxf.convert.json_files import read_json
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.convert.safetensors_files import LABELS, Create, SafetensorsFolder, write_files
from megaxf.convert.settings import TokenIds
from megaxf.convert.tables import Made, shapes_of, to_ours, to_theirs, with_prefix
from megaxf.models.registry import ModelConfig
from megaxf.models.weights import Weights

CONFIG, GENERATION = "config.json", "generation_config.json"
MAX_SHARD_SIZE = 5_000_000_000
"""Bytes, as of transformers."""
rounded = casting.rounded
NO_IDS: TokenIds = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write a folder that `transformers` opens. A piece of a tensor is in memory at a time.

    form.dtype: "bfloat16", "float16" or "float32". form.max_shard_size: by default 5 GB; a file has more only where one
    tensor is larger.
    Raises ConvertError where no architecture fits, a weight is missing, superfluous, of a wrong shape or too large for
    the dtype, the tokenizer does not fit into the vocabulary, or `out` is in the way.
    """
    dtype = choose_dtype(model, form, LABELS)
    needed = DTYPES[dtype].itemsize * sum(shape.numel() for shape in theirs_of(model).shapes.values())
    with (
        new_folder(out, form, mark=CONFIG, needed=needed) as folder,
        each_used_once(model.weights, form.told) as weights,
    ):
        describe(model, folder, dtype)
        theirs = theirs_of(model._replace(weights=weights))
        create = lambda name: (folder / name).open("wb")  # noqa: E731
        size = write_files(create, theirs, dtype, form.max_shard_size or MAX_SHARD_SIZE)
    return Written(size, dtype, [])


def write_share(model: Trained, create: Create, writer: int, writers: int) -> None:
    """Write one writer's share of a folder in bfloat16: some of the files of tensors, the first also all that is none.

    Raises as `write` does.
    """
    theirs = theirs_of(model)
    size = sum(DTYPES["bfloat16"].itemsize * shape.numel() for shape in theirs.shapes.values())
    if writer == 0:
        with TemporaryDirectory() as spare:
            describe(model, Path(spare), "bfloat16")
            for path in sorted(Path(spare).iterdir()):
                with create(path.name) as file:
                    file.write(path.read_bytes())
    write_files(create, theirs, "bfloat16", min(MAX_SHARD_SIZE, -(-size // writers)), writer, writers)


def theirs_of(model: Trained) -> Weights:
    """The tensors as Hugging Face has them. Raises ConvertError where it cannot, or they are not all there."""
    wanted, family = parameter_shapes(model.config), families.of(model.config)
    check_names(model.weights.shapes, wanted, "the checkpoint")
    family.check(model.config)
    return Made(model.weights, to_theirs(wanted, family.RULES))


def describe(model: Trained, folder: Path, dtype: str) -> None:
    """Write all of a folder but the weights: config.json, generation_config.json and the tokenizer."""
    ids = _token_ids(model, folder)
    _write_json(folder / CONFIG, families.of(model.config).to_huggingface(model.config, ids, dtype))
    _write_json(folder / GENERATION, {key: value for key, value in ids.items() if value is not None})


def _token_ids(model: Trained, folder: Path) -> TokenIds:
    """Write the tokenizer; gives the ids for config.json."""
    ids = NO_IDS if model.tokenizer is None else _export_tokenizer(model.config, model.tokenizer, folder)
    if model.eos_ids:
        ids = {**ids, "eos_token_id": model.eos_ids if len(model.eos_ids) > 1 else model.eos_ids[0]}
    return ids


def _export_tokenizer(config: ModelConfig, source: Path, folder: Path) -> TokenIds:
    size = load_tokenizer(source).vocab_size
    if size > config.vocab_size:
        raise ConvertError(
            f"{source}: the tokenizer has {size} tokens and model.vocab_size = {config.vocab_size}; it is of another "
            "model"
        )
    return {**export_tokenizer(source, folder, max_length=config.max_position_embeddings)}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> Trained:
    """The model of a Hugging Face folder; tensors are read when asked for.

    Raises ConvertError for a folder that is incomplete or damaged, a model that megaxf has not, or names and shapes
    that do not fit config.json, listing all.
    """
    about = read_description(path)
    config, family = about.config, families.of(about.config)
    files = SafetensorsFolder(path)
    entries = with_prefix(files, family.PREFIX, family.HEAD)
    found = Made(files, entries)
    spare = {name for name in found if re.fullmatch(family.DERIVED, name)} | _tied_copy(config, found, family, path)
    wanted = parameter_shapes(config)
    theirs = shapes_of(to_theirs(wanted, family.RULES), wanted)
    check_names({name: shape for name, shape in found.shapes.items() if name not in spare}, theirs, str(path))
    dtypes = {files.dtype(source) for name, entry in entries.items() if name not in spare for source in entry.sources}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else "float32"
    ours = Made(found, to_ours(wanted, family.RULES))
    return Trained(config, ours, about.tokenizer, dtype, about.eos_ids, path, "huggingface")


class Description(NamedTuple):
    """What a folder says beside its weights."""

    config: ModelConfig
    tokenizer: Path | None
    eos_ids: list[int]


def read_description(path: Path) -> Description:
    """What `describe` writes. Raises ConvertError where there is no config.json of a model that megaxf has."""
    settings = read_json(path / CONFIG)
    try:
        config = families.of_settings(settings).from_huggingface(settings)
    except ConvertError:
        raise
    except (AttributeError, TypeError, ValueError) as error:  # text for a number, a number for a table
        raise ConvertError(f"{path / CONFIG} has a setting of a wrong kind: {error}") from error
    return Description(config, tokenizer_in(path), _eos_ids(path, settings))


def tokenizer_in(path: Path) -> Path | None:
    """The folder, where it has a tokenizer."""
    return path if any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")) else None


def reopen(model: Trained, out: Path) -> Trained:
    """The folder that `model` was written to."""
    return read(out)


def recognises(path: Path) -> bool:
    """Whether a path looks like a Hugging Face folder."""
    return (path / CONFIG).is_file()


def _tied_copy(config: ModelConfig, found: Weights, family: families.Family, folder: Path) -> set[str]:
    """The output matrix where it is written beside the table that it is tied to, and equals it."""
    head, table = family.HEAD, family.TABLE
    if not config.tie_word_embeddings or head not in found or table not in found:
        return set()
    if not torch.equal(found[head], found[table]):
        raise ConvertError(
            f"{folder}: config.json ties the embeddings (tie_word_embeddings: true), yet {head} differs from {table}; "
            "set it to false to use both, or remove the stale one"
        )
    return {head}


def _eos_ids(folder: Path, settings: dict[str, Any]) -> list[int]:
    generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
    found = generation.get("eos_token_id", settings.get("eos_token_id"))
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(token) is int for token in ids):
        raise ConvertError(f"{folder}: eos_token_id = {found!r} is no number of a token, nor a list of such")
    return ids

"""What a user may name where a trained model is wanted: a run folder, a checkpoint, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from megaxf.models.llama import Config


class Source(NamedTuple):
    """A trained model, its weights not yet read."""

    path: Path
    """The folder that was found: of a run, its newest checkpoint."""
    huggingface: bool
    config: Config
    weights: Any
    """Tensor by name, with `shapes`."""
    tokenizer: Path | None
    dtype: str
    """In which the weights were trained or stored: bfloat16 or float32."""
    eos_ids: list[int]
    """Ids that end a text; of a checkpoint, the tokenizer's end-of-document id."""


def open_source(path: str | Path) -> Source:
    """Find and check what a path names. Raises CheckpointError or ConvertError where it is no model, or is damaged."""
    from megaxf.convert.huggingface import import_folder, is_folder

    path = Path(path)
    if is_folder(path):
        found = import_folder(path)
        return Source(path, True, found.config, found.weights, found.tokenizer_folder, found.dtype, found.eos_ids)
    return _open_checkpoint(path)


def _open_checkpoint(path: Path) -> Source:
    from data_pipeline.tokenizer.base import load_tokenizer
    from megaxf.checkpoint import read_config, read_extra, read_weights, resolve

    checkpoint = resolve(path)
    settings = read_config(checkpoint)
    folder = checkpoint / "tokenizer"
    tokenizer = folder if folder.is_dir() else None
    eos_ids = [load_tokenizer(folder).eod_id] if tokenizer else []
    precision = settings.get("train", {}).get("precision")
    dtype = {"bf16": "bfloat16", "fp32": "float32", None: read_extra(checkpoint).get("dtype")}[precision] or "float32"
    config = model_config(settings, str(checkpoint / "config.yaml"))
    return Source(checkpoint, False, config, read_weights(checkpoint), tokenizer, dtype, eos_ids)


def model_config(settings: Mapping[str, Any], origin: str) -> Config:
    """The model of a checkpoint's config.yaml. Raises ConfigError naming `origin` where it is none."""
    from pydantic import ValidationError

    from megaxf.config_errors import ConfigError, explain
    from megaxf.models.registry import family

    fields = dict(settings["model"])
    config_class: type[Config] = family(fields.pop("family", "llama")).Config
    try:
        return config_class.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(origin, explain(error.errors(), config_class, fields)) from None

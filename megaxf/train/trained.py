"""What a user may name where a trained model is wanted: a run folder, a checkpoint, or another program's folder.

Run folders and checkpoints may lie in a store (s3://bucket/run), other programs' folders on a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.stream.store import is_url

if TYPE_CHECKING:
    from megaxf.convert.interface import Trained
    from megaxf.models.llama_config import Config

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""What a run of each precision trains its weights in."""


def open_source(path: str | Path) -> Trained:
    """Find and check what a path names. Raises CheckpointError or ConvertError where it is no model, or is damaged."""
    from megaxf.convert.registry import format_named, format_of

    name = None if is_url(path) else format_of(Path(path))
    model: Trained = format_named(name).read(Path(path)) if name else _open_checkpoint(path)
    return model


def read_model_config(path: str | Path) -> Any:
    """The architecture of what a path names; weights of a checkpoint are not looked at. Raises as `open_source`."""
    from megaxf.checkpoint import read_config, resolve
    from megaxf.convert.registry import format_named, format_of

    name = None if is_url(path) else format_of(Path(path))
    if name:
        return format_named(name).read(Path(path)).config
    checkpoint = resolve(path)
    return model_config(read_config(checkpoint), str(checkpoint / "config.yaml"))


def _open_checkpoint(path: str | Path) -> Trained:
    from data_pipeline.tokenizer.base import load_tokenizer
    from megaxf.checkpoint import read_config, read_extra, read_moments, read_weights, resolve, tokenizer_folder
    from megaxf.convert.interface import OptimizerState, Trained

    checkpoint = resolve(path)
    settings = read_config(checkpoint)
    tokenizer = tokenizer_folder(checkpoint)
    extra = read_extra(checkpoint)
    eos_ids = extra.get("eos_ids") or ([load_tokenizer(tokenizer).eod_id] if tokenizer else [])
    precision = settings.get("train", {}).get("precision")
    dtype = DTYPES[precision] if precision else extra.get("dtype", "float32")
    config = model_config(settings, str(checkpoint / "config.yaml"))
    optimizer = OptimizerState(*read_moments(checkpoint))
    weights = read_weights(checkpoint)
    return Trained(config, weights, tokenizer, dtype, eos_ids, checkpoint, "megaxf", optimizer)


def model_config(settings: Mapping[str, Any], origin: str) -> Config:
    """The model of a checkpoint's config.yaml. Raises ConfigError naming `origin` where it is none."""
    from pydantic import ValidationError

    from megaxf.config_errors import ConfigError, explain
    from megaxf.models.registry import config_type

    fields = dict(settings["model"])
    config_class: type[Config] = config_type(fields.pop("family", "llama"))
    try:
        return config_class.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(origin, explain(error.errors(), config_class, fields)) from None

"""Rotary settings in Hugging Face's two spellings.

transformers 5 keeps all in `rope_parameters`; 4 has `rope_theta` and, where stretched, `rope_scaling`. Both are
written, and either is read.
"""

from __future__ import annotations

from typing import Any

from megaxf.convert.errors import ConvertError
from megaxf.models.llama_config import Config
from megaxf.models.rope_scaling import NtkScaling

DEFAULT_THETA = 10000.0
FIELDS: dict[str, set[str]] = {
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def to_huggingface(config: Config) -> dict[str, Any]:
    """`rope_parameters`, `rope_theta` and `rope_scaling` of a model."""
    theta, scaling = config.rope_theta, config.rope_scaling
    if isinstance(scaling, NtkScaling):
        # Hugging Face has no fixed NTK stretch, but it is a larger theta and nothing else.
        theta, scaling = scaling.theta(config.head_dim, theta), None
    if scaling is None:
        stretch = None
        kind: dict[str, Any] = {"rope_type": "default"}
    else:
        fields = scaling.model_dump(exclude_none=True)
        kind = {"rope_type": fields.pop("type"), **fields}
        stretch = {**kind, "type": kind["rope_type"]}
    return {"rope_parameters": {**kind, "rope_theta": theta}, "rope_theta": theta, "rope_scaling": stretch}


def from_huggingface(settings: dict[str, Any]) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` of megaxf from a config.json in either spelling.

    Raises ConvertError for a kind that megaxf has not, and where the spellings disagree.
    """
    parameters, scaling = settings.get("rope_parameters") or {}, settings.get("rope_scaling") or {}
    thetas = {value for value in (parameters.get("rope_theta"), settings.get("rope_theta")) if value is not None}
    if len(thetas) > 1:
        raise ConvertError(f"config.json: rope_parameters.rope_theta and rope_theta differ: {sorted(thetas)}")
    theta = float(next(iter(thetas), DEFAULT_THETA))
    stretch = scaling or parameters
    kind = stretch.get("rope_type", stretch.get("type", "default"))
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind not in FIELDS:
        raise ConvertError(f"config.json: rope_type = {kind!r} is not known here; megaxf has {', '.join(FIELDS)}")
    given = {key: value for key, value in stretch.items() if key not in ("type", "rope_type", "rope_theta")}
    unknown = {key for key, value in given.items() if key not in FIELDS[kind] and value is not None}
    if unknown:
        raise ConvertError(f"config.json: rope settings {', '.join(sorted(unknown))} have no meaning for {kind!r} here")
    if "original_max_position_embeddings" in FIELDS[kind]:
        given.setdefault("original_max_position_embeddings", settings["max_position_embeddings"])
    return {"rope_theta": theta, "rope_scaling": {"type": kind, **given}}

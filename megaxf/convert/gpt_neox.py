"""GPTNeoXForCausalLM (GPT-NeoX, Pythia): config.json; the tensors are the same on both sides."""

from __future__ import annotations

from typing import Any

from megaxf.convert.errors import ConvertError
from megaxf.convert.settings import Names, TokenIds, make_config, one_value, read_settings, write_settings
from megaxf.convert.tables import Rule
from megaxf.models.gpt_neox_config import Config

MODEL_TYPES = ("gpt_neox",)
PREFIX = "gpt_neox."
TABLE, HEAD = "gpt_neox.embed_in.weight", "embed_out.weight"
DERIVED = r"gpt_neox\.layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)"
"""Causal masks and rotary frequencies."""
RULES: tuple[Rule, ...] = ()

REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
OPTIONAL = (
    "hidden_act",
    "layer_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
    "use_parallel_residual",
    "attention_bias",
)
NAMES = Names(
    "GPTNeoXForCausalLM",
    "gpt_neox",
    {name: name for name in REQUIRED},
    {name: name for name in OPTIONAL},
    {"rope_scaling": None},
)
ROTARY = {
    "rotary_emb_base": ("rotary_emb_base", "rope_theta", "rope_parameters.rope_theta"),
    "rotary_pct": ("rotary_pct", "partial_rotary_factor", "rope_parameters.partial_rotary_factor"),
}
"""Our settings, and their names in transformers 4 and 5."""
NO_DROPOUT = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
"""It is a setting of the run here."""


def check(config: Config) -> None:
    """Every model of the family is one of transformers."""


def to_huggingface(config: Config, ids: TokenIds, dtype: str) -> dict[str, Any]:
    """The content of config.json, rotary settings in both spellings; see megaxf.convert.families.Family."""
    base, share = config.rotary_emb_base, config.rotary_pct
    rotary = {
        "rotary_emb_base": base,
        "rotary_pct": share,
        "rope_parameters": {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share},
    }
    return write_settings(NAMES, config, ids, dtype) | rotary | NO_DROPOUT


def from_huggingface(settings: dict[str, Any]) -> Config:
    """The model of a config.json. Raises ConvertError naming everything that is missing or that megaxf has not."""
    fields = read_settings(NAMES, settings)
    kind = (settings.get("rope_parameters") or {}).get("rope_type", "default")
    if kind != "default":
        raise ConvertError(f"config.json: rope_parameters.rope_type = {kind!r} is not supported, only 'default'")
    for ours, theirs in ROTARY.items():
        if (value := one_value(settings, *theirs)) is not None:
            fields[ours] = value
    config: Config = make_config(Config, fields, NAMES)
    return config

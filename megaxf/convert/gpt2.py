"""GPT2LMHeadModel: config.json and tensors."""

from __future__ import annotations

from typing import Any

from megaxf.convert.settings import Names, TokenIds, make_config, one_value, read_settings, write_settings
from megaxf.convert.tables import Rule
from megaxf.models.gpt2_config import Config

MODEL_TYPES = ("gpt2",)
PREFIX = "transformer."
TABLE, HEAD = "transformer.wte.weight", "lm_head.weight"
DERIVED = r"transformer\.h\.\d+\.attn\.(masked_)?bias"
"""Causal masks."""
RULES = (
    Rule("attn.c_attn.weight", ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"), transposed=True),
    Rule("attn.c_attn.bias", ("attn.q_proj.bias", "attn.k_proj.bias", "attn.v_proj.bias")),
    Rule("attn.c_proj.weight", ("attn.c_proj.weight",), transposed=True),
    Rule("mlp.c_fc.weight", ("mlp.c_fc.weight",), transposed=True),
    Rule("mlp.c_proj.weight", ("mlp.c_proj.weight",), transposed=True),
)
"""Matrices of layers are stored [in, out]."""

NAMES = Names(
    "GPT2LMHeadModel",
    "gpt2",
    {
        "vocab_size": "vocab_size",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
    },
    {
        "n_inner": "intermediate_size",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
        "tie_word_embeddings": "tie_word_embeddings",
        "initializer_range": "initializer_range",
    },
    {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
)
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
"""It is a setting of the run here."""


def check(config: Config) -> None:
    """Every model of the family is one of transformers."""


def to_huggingface(config: Config, ids: TokenIds, dtype: str) -> dict[str, Any]:
    """The content of config.json; see megaxf.convert.families.Family."""
    length = {"n_ctx": config.max_position_embeddings}
    return write_settings(NAMES, config, ids, dtype) | length | NO_DROPOUT


def from_huggingface(settings: dict[str, Any]) -> Config:
    """The model of a config.json. Raises ConvertError naming everything that is missing or that megaxf has not."""
    one_value(settings, "n_positions", "n_ctx")
    config: Config = make_config(Config, read_settings(NAMES, settings), NAMES)
    return config

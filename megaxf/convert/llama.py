"""config.json of the four architectures of Hugging Face that the Llama family covers, both ways.

| features beyond Llama           | architecture       |
|---------------------------------|--------------------|
| none                            | LlamaForCausalLM   |
| sliding window                  | MistralForCausalLM |
| biases on q, k, v (and window)  | Qwen2ForCausalLM   |
| norms on q and k (and window)   | Qwen3ForCausalLM   |
"""

from __future__ import annotations

from typing import Any

from megaxf.convert import rope_settings
from megaxf.convert.errors import ConvertError
from megaxf.convert.settings import NO_MODEL, UNSUPPORTED, TokenIds, make_config
from megaxf.convert.tables import Rule
from megaxf.models.llama_config import Config

PREFIX = "model."
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DERIVED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
"""Rotary frequencies."""
RULES: tuple[Rule, ...] = ()

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
MODEL_TYPES = tuple(CLASSES)
SLIDING = "sliding_attention"
WINDOW_BY_LAYER = ("qwen2", "qwen3")
"""Model types whose window is switched on by a flag, from a layer on."""

SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "initializer_range",
)
"""Settings of one name and meaning on both sides."""
OPTIONAL = {"head_dim", "num_key_value_heads", "tie_word_embeddings", "initializer_range"}
"""What a config.json may leave out: transformers' defaults are megaxf's for these."""

FIXED: dict[str, Any] = {"hidden_act": "silu", "mlp_bias": False, "attention_dropout": 0.0, "attention_bias": False}
"""Settings that have one value here. attention_bias, except in Qwen2, would put one on the output too."""


def check(config: Config) -> None:
    """Raises ConvertError where none of the architectures computes what the model does."""
    model_type(config)


def model_type(config: Config) -> str:
    """Which of the architectures computes what the model does. Raises ConvertError where none does."""
    if config.attention_bias and config.qk_norm:
        raise ConvertError(
            "no architecture of Hugging Face has both biases on q, k, v (model.attention_bias, as Qwen2) and norms on "
            "q and k (model.qk_norm, as Qwen3); the model cannot be exported there"
        )
    if config.attention_bias:
        return "qwen2"
    if config.qk_norm:
        return "qwen3"
    # LlamaConfig refuses a hidden size that is no multiple of the heads, whatever head_dim says; Mistral is the same
    # mathematics without that check.
    uneven = config.hidden_size % config.num_attention_heads
    return "mistral" if config.sliding_window is not None or uneven else "llama"


def to_huggingface(config: Config, ids: TokenIds, dtype: str) -> dict[str, Any]:
    """The content of config.json; see megaxf.convert.families.Family."""
    kind = model_type(config)
    settings: dict[str, Any] = {"architectures": [CLASSES[kind]], "model_type": kind}
    settings |= {name: getattr(config, name) for name in SAME}
    settings |= {
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    settings |= rope_settings.to_huggingface(config) | ids
    if kind == "llama":
        settings |= {"attention_bias": False, "mlp_bias": False}
    if kind == "qwen3":
        settings |= {"attention_bias": False}
    if kind == "mistral" or config.sliding_window is not None:
        settings["sliding_window"] = config.sliding_window
    if kind in WINDOW_BY_LAYER:
        windowed = config.sliding_window is not None
        first = 0 if windowed else config.num_hidden_layers
        settings |= {"use_sliding_window": windowed, "max_window_layers": first}
    return settings


def from_huggingface(settings: dict[str, Any]) -> Config:
    """The model of a config.json. Raises ConvertError naming everything that is missing or that megaxf has not."""
    kind = settings["model_type"]
    problems = [f"{name} is missing" for name in SAME if settings.get(name) is None and name not in OPTIONAL]
    if settings.get("num_key_value_heads") is None and kind != "llama":
        problems.append(f"num_key_value_heads is missing, and {CLASSES[kind]} does not take num_attention_heads for it")
    fixed = {name: value for name, value in FIXED.items() if settings.get(name) is not None}
    problems += [
        f"{name} = {settings[name]!r} is not supported, only {value!r}"
        for name, value in fixed.items()
        if settings[name] != value and not (kind == "qwen2" and name == "attention_bias")
    ]
    unsupported = (*UNSUPPORTED, "partial_rotary_factor")
    problems += [f"{name} is not supported" for name in unsupported if settings.get(name) not in (None, 1, 1.0)]
    if problems:
        raise ConvertError.listing(NO_MODEL, problems)
    fields = {name: settings[name] for name in SAME if settings.get(name) is not None}
    fields |= rope_settings.from_huggingface(settings)
    fields |= {"attention_bias": kind == "qwen2", "qk_norm": kind == "qwen3", "sliding_window": _window(kind, settings)}
    config: Config = make_config(Config, fields)
    return config


def _window(kind: str, settings: dict[str, Any]) -> int | None:
    """The window of all layers. Raises ConvertError where only some have one."""
    window: int | None = settings.get("sliding_window") if kind != "llama" else None
    layers = settings["num_hidden_layers"]
    if kind in WINDOW_BY_LAYER:
        first = settings.get("max_window_layers", 28) if settings.get("use_sliding_window") else layers
        by_layer = [SLIDING if index >= first else "full_attention" for index in range(layers)]
        kinds = set(settings.get("layer_types") or by_layer)
        if len(kinds) > 1:
            raise ConvertError("config.json: some layers have a sliding window and some not; megaxf has one for all")
        window = window if kinds == {SLIDING} else None
    # A window as long as the context hides nothing.
    return None if window is None or window >= settings["max_position_embeddings"] else window

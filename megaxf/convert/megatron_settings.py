"""The arguments that Megatron-LM keeps in its checkpoints as settings of a model of the Llama family, both ways."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from megaxf.config_errors import explain
from megaxf.convert.casting import DTYPES
from megaxf.convert.errors import ConvertError
from megaxf.models.llama_config import Config

DIVISIBLE_BY = 128
"""Megatron-LM's default of make_vocab_size_divisible_by."""
SAME = {
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "max_position_embeddings": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
}
"""Megatron-LM's argument -> our setting; all have to be there."""
OPTIONAL = {"rotary_base": "rope_theta", "init_method_std": "initializer_range"}
"""The same, with one default on both sides."""
FLAGS = {"add_qkv_bias": "attention_bias", "qk_layernorm": "qk_norm"}
"""The same; false where they are missing."""
NEEDED: dict[str, Any] = {"position_embedding_type": "rope", "swiglu": True, "normalization": "RMSNorm"}
"""What makes a GPT of Megatron-LM a Llama; its defaults are others."""
FIXED: dict[str, Any] = {
    "add_bias_linear": False,
    "rotary_percent": 1.0,
    "rotary_interleaved": False,
    "rotary_seq_len_interpolation_factor": None,
    "apply_layernorm_1p": False,
    "num_experts": None,
    "multi_latent_attention": False,
    "window_size": None,
}
"""Arguments that have one value here, which is the default or, of add_bias_linear, has to be said."""
LLAMA3 = {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""What Megatron-LM's use_rope_scaling has built in."""


def padded_size(vocab_size: int, tensor_parallel_size: int) -> int:
    """Rows of the table: a multiple of make_vocab_size_divisible_by x the tensor-parallel ranks."""
    unit = DIVISIBLE_BY * tensor_parallel_size
    return -(-vocab_size // unit) * unit


def arguments_in(content: Any, path: Path) -> dict[str, Any]:
    """The arguments of the run in what a file holds. Raises ConvertError where it has none."""
    found = content.get("args") if isinstance(content, dict) else None
    if not hasattr(found, "__dict__"):
        raise ConvertError(
            f"{path} has no arguments of Megatron-LM (`args`), which say what model it is; save with its own training "
            "script"
        )
    return vars(found)


def read_arguments(arguments: Mapping[str, Any], vocab_size: int, origin: str) -> Config:
    """The model. Raises ConvertError naming everything that is missing or that megaxf has not."""
    problems = [f"{name} is missing" for name in SAME if arguments.get(name) is None]
    problems += [
        f"{name} = {arguments.get(name)!r} is not supported, only {value!r}"
        for name, value in NEEDED.items()
        if arguments.get(name) != value
    ]
    problems += [
        f"{name} = {arguments[name]!r} is not supported, only {value!r}"
        for name, value in FIXED.items()
        if name in arguments and arguments[name] != value and arguments[name] is not None
    ]
    if problems:
        raise ConvertError.listing(f"the arguments in {origin} do not describe a model of megaxf", problems)
    names = SAME | {name: ours for name, ours in OPTIONAL.items() if arguments.get(name) is not None}
    fields = {ours: arguments[name] for name, ours in names.items()}
    fields |= {ours: bool(arguments.get(name)) for name, ours in FLAGS.items()}
    heads = "num_query_groups" if arguments.get("group_query_attention") else "num_attention_heads"
    fields |= {
        "vocab_size": vocab_size,
        "num_key_value_heads": arguments[heads],
        "tie_word_embeddings": not arguments.get("untie_embeddings_and_output_weights"),
        "rope_theta": float(fields.get("rope_theta", 10000.0)),
        "rope_scaling": _read_scaling(arguments),
    }
    try:
        return Config.model_validate(fields)
    except ValidationError as error:
        raise ConvertError.listing(
            f"the arguments in {origin} do not describe a model of megaxf", explain(error.errors(), Config, fields)
        ) from None


def write_arguments(config: Config, dtype: str, tensor_parallel_size: int, pipeline_parallel_size: int) -> Namespace:
    """What Megatron-LM's --use-checkpoint-args takes. Raises ConvertError where it has no word for the model."""
    if config.sliding_window is not None:
        raise ConvertError(
            f"model.sliding_window = {config.sliding_window} is not written for Megatron-LM; only models that attend "
            "to all tokens are"
        )
    names = {name: getattr(config, ours) for name, ours in (SAME | OPTIONAL | FLAGS).items()}
    return Namespace(
        **names,
        **NEEDED,
        **FIXED,
        **_write_scaling(config),
        group_query_attention=config.num_key_value_heads != config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        untie_embeddings_and_output_weights=not config.tie_word_embeddings,
        vocab_size=config.vocab_size,
        padded_vocab_size=padded_size(config.vocab_size, tensor_parallel_size),
        make_vocab_size_divisible_by=DIVISIBLE_BY,
        seq_length=config.max_position_embeddings,
        tensor_model_parallel_size=tensor_parallel_size,
        pipeline_model_parallel_size=pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=None,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        transformer_impl="transformer_engine",
        bf16=dtype == "bfloat16",
        fp16=dtype == "float16",
        params_dtype=DTYPES[dtype],
    )


def _read_scaling(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    if not arguments.get("use_rope_scaling"):
        return None
    return {"type": "llama3", "factor": float(arguments.get("rope_scaling_factor", 8.0)), **LLAMA3}


def _write_scaling(config: Config) -> dict[str, Any]:
    if config.rope_scaling is None:
        return {"use_rope_scaling": False}
    scaling = config.rope_scaling.model_dump()
    if scaling | {"type": "llama3"} | LLAMA3 != scaling:
        raise ConvertError(
            f"model.rope_scaling = {scaling} is not written for Megatron-LM, which has only type llama3 with {LLAMA3}"
        )
    return {"use_rope_scaling": True, "rope_scaling_factor": scaling["factor"]}


def dtype_name(tensor: torch.Tensor) -> str:
    """As megaxf calls it; float32 for what it has no name for."""
    return next((name for name, dtype in DTYPES.items() if dtype == tensor.dtype), "float32")

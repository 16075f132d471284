"""The settings of the Llama family, under the names of Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megaxf.models.rope_scaling import RopeScaling
from megaxf.plan.parameters import Structure

Count = Annotated[int, Field(gt=0, lt=2**31)]
Pieces = Annotated[int, Field(gt=0, le=65536)]
"""Heads and layers: more than any model has, and few enough to go through them one by one."""
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _heads(given: dict[str, Any]) -> int:
    return given["num_attention_heads"]


def _share_of_hidden(given: dict[str, Any]) -> int:
    return max(given["hidden_size"] // given["num_attention_heads"], 1)


class Config(BaseModel):
    """An architecture; unknown keys, wrong types and sizes that do not fit together are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    family: Literal["llama"] = "llama"
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    """Width of the MLP between gate/up and down."""
    num_hidden_layers: Pieces
    num_attention_heads: Pieces
    num_key_value_heads: Pieces = Field(default_factory=_heads)
    """Each key/value head serves num_attention_heads / num_key_value_heads query heads."""
    head_dim: Count = Field(default_factory=_share_of_hidden)
    """By default hidden_size / num_attention_heads."""
    max_position_embeddings: Count
    """The longest sequence, in tokens."""
    rope_theta: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: PositiveFloat = 1e-5
    tie_word_embeddings: bool = False
    """Use the embedding table as output matrix."""
    attention_bias: bool = False
    """Biases on the projections to queries, keys and values (Qwen2)."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys, before the rotation (Qwen3)."""
    sliding_window: Count | None = None
    """Keys that a query sees, its own included (Mistral)."""
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""

    @property
    def structure(self) -> Structure:
        """For the planner."""
        return Structure()

    @model_validator(mode="after")
    def _sizes_agree(self) -> Config:
        problems = list(_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _problems(config: Config) -> Iterator[str]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        yield (
            f"model.num_key_value_heads = {kv_heads} does not divide model.num_attention_heads = {heads}; "
            f"use one of {divisors}"
        )
    if "head_dim" not in config.model_fields_set and config.hidden_size % heads:
        yield (
            f"model.head_dim is missing and model.num_attention_heads = {heads} does not divide model.hidden_size = "
            f"{config.hidden_size}; give model.head_dim or another number of heads"
        )
    elif config.head_dim % 2:
        yield f"model.head_dim = {config.head_dim} is odd; rotary embeddings turn pairs of dimensions, use an even one"
    window, longest = config.sliding_window, config.max_position_embeddings
    if window is not None and window >= longest:
        yield (
            f"model.sliding_window = {window} has no effect with model.max_position_embeddings = {longest}; "
            "remove it or make it shorter"
        )

"""The settings that GPT-2 and GPT-NeoX have in common, under the names of GPT-NeoX in Hugging Face's config.json."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megaxf.models.llama_config import Count, Pieces, PositiveFloat

Activation = Literal["gelu", "gelu_new", "gelu_fast"]
"""Names of transformers: the exact x Phi(x), and its approximation by a tanh under the two names that it has there."""


def _four_times_hidden(given: dict[str, Any]) -> int:
    return 4 * int(given["hidden_size"])


class GPTConfig(BaseModel):
    """An architecture; unknown keys, wrong types and sizes that do not fit together are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    family: str
    """Of the two."""
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count = Field(default_factory=_four_times_hidden)
    """Width of the MLP; by default 4 x hidden_size."""
    num_hidden_layers: Pieces
    num_attention_heads: Pieces
    """Each of hidden_size / num_attention_heads dimensions."""
    max_position_embeddings: Count
    """The longest sequence, in tokens."""
    layer_norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """As many as query heads: each has its own."""
        return self.num_attention_heads

    @property
    def qk_norm(self) -> Literal[False]:
        """Heads are not normed."""
        return False

    @property
    def sliding_window(self) -> None:
        """Every earlier key is seen."""
        return None

    @model_validator(mode="after")
    def _heads_share_the_hidden_size(self) -> GPTConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"model.num_attention_heads = {self.num_attention_heads} does not divide model.hidden_size = "
                f"{self.hidden_size}, which the heads share; change one of them"
            )
        return self

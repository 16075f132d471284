"""The settings of GPT-NeoX and Pythia."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from megaxf.models.gpt_config import Activation, GPTConfig
from megaxf.plan.parameters import Structure


class Config(GPTConfig):
    """See GPTConfig."""

    family: Literal["gpt_neox"] = "gpt_neox"
    tie_word_embeddings: bool = False
    """Use the embedding table as output matrix."""
    hidden_act: Activation = "gelu"
    rotary_pct: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of a head's dimensions that are rotary, the first ones."""
    rotary_emb_base: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10000.0
    use_parallel_residual: bool = True
    """Attention and MLP take the same input, and the sum of both is added to it."""
    attention_bias: bool = True
    """Biases on query_key_value and on dense."""

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotary."""
        return int(self.head_dim * self.rotary_pct)

    @property
    def structure(self) -> Structure:
        """For the planner."""
        return Structure(
            mlp_matrices=2,
            layer_norm=True,
            output_bias=self.attention_bias,
            mlp_bias=True,
            fused_heads=True,
            parallel_residual=self.use_parallel_residual,
            rotary=self.rotary_pct,
        )

    @model_validator(mode="after")
    def _pairs_are_rotated(self) -> Config:
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(
                f"model.rotary_pct = {self.rotary_pct} of {self.head_dim} dimensions of a head is {self.rotary_dim}; "
                "rotary embeddings turn pairs of dimensions, use a share that gives an even number of them"
            )
        return self

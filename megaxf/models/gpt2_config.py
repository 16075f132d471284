"""The settings of GPT-2."""

from __future__ import annotations

from typing import Literal

from megaxf.models.gpt_config import Activation, GPTConfig
from megaxf.plan.parameters import Structure


class Config(GPTConfig):
    """See GPTConfig."""

    family: Literal["gpt2"] = "gpt2"
    tie_word_embeddings: bool = True
    """Use the embedding table as output matrix."""
    hidden_act: Activation = "gelu_new"

    @property
    def attention_bias(self) -> Literal[True]:
        """Queries, keys and values have biases."""
        return True

    @property
    def structure(self) -> Structure:
        """For the planner."""
        return Structure(
            mlp_matrices=2,
            layer_norm=True,
            output_bias=True,
            mlp_bias=True,
            rotary=0.0,
            learned_positions=self.max_position_embeddings,
        )

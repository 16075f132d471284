"""Tiny models of the Llama family."""

import pytest
import torch

from megaxf.models.initialize import initialize
from megaxf.models.llama import Config, Model

TINY = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,  # Large, so that every part of the model matters.
}


@pytest.fixture
def tiny_settings():
    return dict(TINY)


@pytest.fixture
def tiny():
    """make(attention_backend=..., recompute=..., dtype=..., **config): a model with weights."""

    def make(*, attention_backend="sdpa", recompute="none", dtype=None, **changes):
        config = Config(**(TINY | changes))
        model = Model(config, attention_backend=attention_backend, recompute=recompute, dtype=dtype)
        initialize(model, 7)
        return model

    return make


@pytest.fixture
def tokens():
    """[2, 24] token ids of the tiny vocabulary."""
    return torch.randint(0, TINY["vocab_size"], (2, 24), generator=torch.Generator().manual_seed(3))

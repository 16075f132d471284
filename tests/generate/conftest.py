"""Small models with weights large enough that every position matters."""

import pytest
import torch

from megaxf.models.initialize import initialize
from megaxf.models.llama import Config, Model

SETTINGS = {
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


@pytest.fixture
def make_model():
    def make(seed=7, **changes):
        model = Model(Config(**{**SETTINGS, **changes}))
        initialize(model, seed)
        return model.eval()

    return make


@pytest.fixture
def prompts():
    """Lengths 1, 7, 15 and 33."""
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(0, 256, (length,), generator=draw).tolist() for length in (1, 7, 15, 33)]


@pytest.fixture
def without_cache():
    """`without_cache(model, prompt, count)`: greedy tokens from whole forward passes."""

    def continued(model, prompt, count):
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(count):
                tokens.append(model.logits(model(torch.tensor([tokens]))[0, -1]).argmax().item())
        return tokens[len(prompt) :]

    return continued

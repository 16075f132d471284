"""Small models with random weights, no two sizes of which are equal, and a tokenizer."""

import pytest
import torch

from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.convert import huggingface
from megaxf.convert.interface import Form, Trained
from megaxf.models.llama import Config, Model

SETTINGS = {
    "vocab_size": 320,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 96,
    "rms_norm_eps": 0.03,
    "initializer_range": 0.013,
    "rope_theta": 777.0,
}
TEXT = "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass  # ünïcode – 日本\n" * 20


class Weights(dict):
    """Tensors by name with their shapes and in pieces, as a checkpoint gives them."""

    @property
    def shapes(self):
        return {name: tensor.shape for name, tensor in self.items()}

    def pieces(self, name):
        yield from self[name].split(7)


def export(config, weights, tokenizer, out, *, dtype="bfloat16", **form):
    """A Hugging Face folder of a model in memory."""
    return huggingface.write(Trained(config, weights, tokenizer, dtype, []), out, Form(**form))


def assert_same_files(one, other):
    """Two folders have the same files, byte by byte."""
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name


@pytest.fixture(scope="session")
def make_config():
    return lambda **changes: Config(**{**SETTINGS, **changes})


@pytest.fixture(scope="session")
def make_weights():
    """Values large enough that every part of the model shows in the logits."""

    def make(config, seed=0):
        generator = torch.Generator().manual_seed(seed)
        with torch.device("meta"):
            shapes = {name: parameter.shape for name, parameter in Model(config).named_parameters()}
        return Weights({name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()})

    return make


@pytest.fixture(scope="session")
def load():
    """The model of megaxf with given weights."""

    def make(config, weights):
        model = Model(config)
        model.load_state_dict(dict(weights))
        return model.eval()

    return make


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_sentencepiece([TEXT], folder, vocab_size=310)
    return folder

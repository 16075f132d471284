import itertools
import math

import pytest
import torch

from megaxf.models.initialize import initialize
from megaxf.models.llama import Config, Model

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "attention_bias": True,
    "qk_norm": True,
}


def weights(seed=1, dtype=None, **changes):
    model = Model(Config(**SHAPE | {"num_hidden_layers": 3} | changes), dtype=dtype)
    initialize(model, seed)
    return dict(model.named_parameters())


def test_standard_deviations():
    """Residual projections have sigma / sqrt(2 L); biases 0, norms 1."""
    for name, weight in weights().items():
        if name.endswith("bias"):
            assert not weight.any()
        elif "norm" in name:
            assert (weight == 1).all()
        else:
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            expected = 0.02 / math.sqrt(6) if residual else 0.02
            assert weight.std().item() == pytest.approx(expected, rel=0.05), name
            assert abs(weight.mean().item()) < 0.05 * expected, name


@pytest.mark.parametrize(("layers", "expected"), [(12, 0.00408248), (32, 0.00353553 / math.sqrt(2))])
def test_residual_scaling_by_depth(layers, expected):
    weight = weights(num_hidden_layers=layers, hidden_size=32, intermediate_size=512)
    assert weight["model.layers.0.mlp.down_proj.weight"].std().item() == pytest.approx(expected, rel=0.05)


def test_matrices_of_one_shape_differ():
    matrices = [weight for weight in weights().values() if weight.shape == (128, 128)]
    assert len(matrices) == 12
    for one, other in itertools.combinations(matrices, 2):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.05


def test_weights_depend_on_seed_and_name_alone():
    base = weights()
    deeper = weights(num_hidden_layers=5, tie_word_embeddings=True, num_key_value_heads=2)
    name = "model.layers.2.mlp.gate_proj.weight"
    assert torch.equal(base[name], deeper[name])
    assert torch.equal(base["model.embed_tokens.weight"], deeper["model.embed_tokens.weight"])
    assert not torch.equal(base[name], weights(seed=2)[name])


def test_bf16_weights_are_the_rounded_fp32_ones():
    fp32, bf16 = weights(), weights(dtype=torch.bfloat16)
    for name, weight in bf16.items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, fp32[name].bfloat16()), name


def test_torch_random_state_is_left_alone():
    before = torch.get_rng_state()
    weights()
    assert torch.equal(before, torch.get_rng_state())


def test_first_loss_is_near_the_log_of_the_vocabulary():
    model = Model(Config(**SHAPE | {"num_hidden_layers": 3}))
    initialize(model, 1)
    tokens = torch.randint(0, 512, (4, 64), generator=torch.Generator().manual_seed(0))
    logits = model.logits(model(tokens)).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, tokens.flatten().roll(-1))
    assert loss.item() == pytest.approx(math.log(512) + logits.std().item() ** 2 / 2, rel=0.01)

"""GPT-2 and GPT-NeoX as GGUF files: one matrix of queries, keys and values; settings; and what is refused."""

import gguf
import pytest
import torch

from megaxf.convert import gguf as target
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf_layouts import Swap
from megaxf.convert.interface import Form, Trained
from megaxf.convert.verify import compare
from megaxf.models.registry import family
from tests.convert.conftest import Weights
from tests.convert.test_gguf import read
from tests.parity.families import SHAPE, our_model

WRITTEN = {
    "gpt2": "gpt2",
    "gpt2, untied, large eps": "gpt2",
    "neox": "gptneox",
}


def write(case, out, **form):
    """(our model's weights, what was said of the file)"""
    model = our_model(case)
    weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
    trained = Trained(model.config, weights, None, "float32", [])
    return trained, target.write(trained, out, Form(**form))


@pytest.mark.parametrize("case", WRITTEN)
def test_tensors_and_settings_are_read_back(tmp_path, case):
    model, written = write(case, tmp_path / "m.gguf")
    settings, tensors = read(tmp_path / "m.gguf")
    arch = settings["general.architecture"]
    assert arch == WRITTEN[case] and written.size == sum(tensor.nbytes for tensor in tensors.values())
    assert settings[f"{arch}.attention.layer_norm_epsilon"] == pytest.approx(model.config.layer_norm_eps)
    assert settings[f"{arch}.context_length"] == 64 and settings[f"{arch}.feed_forward_length"] == 84
    assert settings[f"{arch}.attention.head_count"] == settings[f"{arch}.attention.head_count_kv"] == 3
    weights = model.weights
    if arch == "gpt2":
        layer = "transformer.h.1.attn"
        expected = [weights[f"{layer}.{kind}_proj.weight"] for kind in "qkv"]
        biases = [weights[f"{layer}.{kind}_proj.bias"] for kind in "qkv"]
        assert (tensors["position_embd.weight"] == weights["transformer.wpe.weight"].numpy()).all()
        assert ("output.weight" in tensors) is not model.config.tie_word_embeddings
        assert len(tensors) == len(weights) - 3 * 4  # of each layer two tensors where there are six
    else:
        # Each head has its query, key and value here, 16 dimensions each.
        fused = [weights[f"gpt_neox.layers.1.attention.query_key_value.{kind}"] for kind in ("weight", "bias")]
        expected, biases = (
            [torch.cat([rows[48 * head + 16 * kind :][:16] for head in range(3)]) for kind in range(3)]
            for rows in fused
        )
        assert settings["gptneox.rope.dimension_count"] == 4 and settings["gptneox.rope.freq_base"] == 500
        assert settings["gptneox.use_parallel_residual"] is True and len(tensors) == len(weights)
    assert (tensors["blk.1.attn_qkv.weight"] == torch.cat(expected).numpy()).all()
    assert (tensors["blk.1.attn_qkv.bias"] == torch.cat(biases).numpy()).all()
    back = target.reopen(model, tmp_path / "m.gguf").weights
    assert list(back) == list(weights) and all(torch.equal(back[name], weights[name]) for name in weights)


@pytest.mark.parametrize("case", ["gpt2", "neox"])
def test_in_bfloat16_learned_positions_stay_fp32_and_verify_knows(tmp_path, case):
    model, written = write(case, tmp_path / "m.gguf", dtype="bfloat16")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert types.get("position_embd.weight", "F32") == "F32" and types["blk.0.attn_qkv.weight"] == "BF16"
    back = target.reopen(model, tmp_path / "m.gguf")
    found = compare(model, back, lambda name, tensor: target.rounded(name, tensor, "bfloat16"))
    assert found.everywhere < 1e-5 < 1 < found.largest_logit
    assert any("tanh" in note for note in written.notes) is (case == "neox")


def test_one_after_the_other(tmp_path):
    module = family("gpt_neox")
    config = module.Config(**SHAPE, family="gpt_neox", use_parallel_residual=False)
    weights = Weights({name: torch.zeros(p.shape) for name, p in module.Model(config).named_parameters()})
    target.write(Trained(config, weights, None, "float32", []), tmp_path / "m.gguf", Form())
    assert read(tmp_path / "m.gguf")[0]["gptneox.use_parallel_residual"] is False


@pytest.mark.parametrize(
    ("case", "message"),
    [("neox, one after the other, tied", "one table for both ends"), ("neox, no biases, all rotary", "without biases")],
)
def test_what_llama_cpp_has_not_is_refused(tmp_path, case, message):
    with pytest.raises(ConvertError, match=message):
        write(case, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_swap_is_undone():
    rows = torch.arange(48).view(24, 2)
    swap = Swap(2, 3, 2, 2)
    assert swap.apply(rows)[:, 0].tolist()[:8] == [0, 2, 8, 10, 16, 18, 4, 6]
    assert torch.equal(swap.back.apply(swap.apply(rows)), rows)

"""GPT-2 and GPT-NeoX from and to Hugging Face's folders: what transformers makes of them, and what comes back."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from megaxf.convert.errors import ConvertError
from megaxf.convert.huggingface import read
from tests.convert.conftest import Weights, assert_same_files, export
from tests.parity.families import CASES, our_model

TOKENS = torch.randint(0, 101, (2, 40), generator=torch.Generator().manual_seed(3))


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """(model, its weights, folder in fp32) of every case."""
    model = our_model(request.param).eval()
    weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
    export(model.config, weights, None, tmp_path / "hf", dtype="float32")
    return model, weights, tmp_path / "hf"


@pytest.fixture
def folder(tmp_path):
    """Makes the folder of one case."""

    def make(name):
        model = our_model(name)
        weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
        export(model.config, weights, None, tmp_path / "hf", dtype="float32", max_shard_size=70_000)
        return tmp_path / "hf"

    return make


def change(path, edit):
    """Edit the tensors of the first file that has some, or of the only one."""
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def rewrite(folder, **changes):
    settings = json.loads((folder / "config.json").read_text()) | changes
    settings = {key: value for key, value in settings.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(settings))


def test_transformers_agrees_and_everything_comes_back(case, tmp_path):
    model, weights, folder = case
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert type(theirs).__name__ in ("GPT2LMHeadModel", "GPTNeoXForCausalLM") and theirs.dtype == torch.float32
    with torch.no_grad():
        expected, logits = theirs(TOKENS, labels=TOKENS), model.logits(model(TOKENS))
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    assert expected.logits.abs().max() > 1
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    back = read(folder)
    assert back.config == model.config and list(back.weights) == list(weights)
    assert all(torch.equal(back.weights[name], weights[name]) for name in weights)
    for name in weights:
        assert torch.equal(torch.cat(list(back.weights.pieces(name))), weights[name])
    export(back.config, back.weights, None, tmp_path / "again", dtype=back.dtype)
    assert_same_files(folder, tmp_path / "again")


def test_what_transformers_saves_is_read_and_written_alike(case, tmp_path):
    """transformers' own folder -> ours -> a folder again: the same tensors under the same names, byte by byte."""
    model, weights, folder = case
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "theirs")
    found = read(tmp_path / "theirs")
    assert found.config == model.config
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)
    export(found.config, found.weights, None, tmp_path / "again", dtype="float32")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_smallest_shards(folder):
    path = folder("gpt2")
    assert len(list(path.glob("*.safetensors"))) > 3
    assert read(path).weights.shapes["transformer.h.2.attn.v_proj.weight"] == (48, 48)


def test_folders_of_the_bare_model_with_masks(case, tmp_path):
    """As the first GPT-2 was published: no prefix, causal masks as buffers, no output matrix."""
    model, weights, folder = case
    prefix = "transformer." if model.config.family == "gpt2" else "gpt_neox."
    layer = "transformer.h.0.attn." if model.config.family == "gpt2" else "gpt_neox.layers.0.attention."

    def edit(tensors):
        tensors[f"{layer}bias"] = torch.ones(1, 1, 64, 64)
        tensors[f"{layer}masked_bias"] = torch.tensor(-1e9)
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)

    change(folder / "model.safetensors", edit)
    found = read(folder)
    assert list(found.weights) == list(weights)
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)


def test_settings_of_older_transformers(folder):
    path = folder("neox")
    settings = {"rotary_emb_base": "absent", "rotary_pct": "absent", "rope_parameters": "absent"}
    rewrite(path, **settings, rope_theta=700, partial_rotary_factor=0.5)
    config = read(path).config
    assert (config.rotary_emb_base, config.rotary_pct) == (700.0, 0.5)
    rewrite(path, rope_theta="absent", partial_rotary_factor="absent")
    assert (read(path).config.rotary_emb_base, read(path).config.rotary_pct) == (10000.0, 0.25)


REFUSED = [
    ("gpt2", {"n_layer": "absent"}, "n_layer is missing"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True is not supported"),
    ("gpt2", {"activation_function": "relu"}, "activation_function = .relu.: should be 'gelu'"),
    ("gpt2", {"n_ctx": 32}, "n_positions = 64, n_ctx = 32 are one setting"),
    ("gpt2", {"n_inner": 96}, r"c_fc.weight is \[48, 84\], the configuration says \[48, 96\]"),
    ("gpt2", {"tie_word_embeddings": False}, "(?s)lm_head.weight is missing.*tie_word_embeddings: true"),
    ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
    ("neox", {"rotary_pct": 0.75}, "rotary_pct = 0.75, rope_parameters.partial_rotary_factor = 0.25 are one setting"),
    ("neox", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type = 'linear' is not supported"),
    ("neox", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* is not supported, only None"),
    ("neox", {"attention_bias": False}, "query_key_value.bias is not part of the model"),
    ("neox", {"num_attention_heads": 5}, "model.num_attention_heads = 5 does not divide model.hidden_size = 48"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_refused(folder, name, changes, message):
    path = folder(name)
    rewrite(path, **changes)
    with pytest.raises(ConvertError, match=message):
        read(path)


def test_a_tensor_that_is_missing_or_strange(folder):
    path = folder("gpt2")
    index = json.loads((path / "model.safetensors.index.json").read_text())
    where = index["weight_map"].pop("transformer.h.1.attn.c_attn.bias")
    index["weight_map"]["transformer.h.1.attn.c_attn.bia"] = where
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    name = "transformer.h.1.attn.c_attn.bias"
    change(path / where, lambda tensors: tensors.update({name[:-1]: tensors.pop(name)}))
    with pytest.raises(ConvertError) as caught:
        read(path)
    assert "transformer.h.1.attn.c_attn.bias is missing" in str(caught.value)
    assert "transformer.h.1.attn.c_attn.bia is not part of the model" in str(caught.value)

"""Imports use every tensor once or say which are at fault; settings are read in each spelling, or refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from megaxf.convert.errors import ConvertError
from megaxf.convert.families import of_settings
from megaxf.convert.huggingface import read
from tests.convert.conftest import Weights, export
from tests.parity.families import our_model

NORM, TABLE, HEAD = "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def folder(tmp_path, make_config, make_weights):
    export(make_config(), make_weights(make_config()), None, tmp_path / "hf", dtype="float32")
    return tmp_path / "hf"


@pytest.fixture
def sharded(tmp_path, make_config, make_weights):
    export(make_config(), make_weights(make_config()), None, tmp_path / "sh", dtype="float32", max_shard_size=80_000)
    return tmp_path / "sh"


def change(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def rewrite(path, **changes):
    content = json.loads(path.read_text())
    content |= changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "absent"}))


FAULTS = {
    "missing": (lambda t: t.pop(NORM), [f"{NORM} is missing"]),
    "renamed": (
        lambda t: t.__setitem__("model.ln_f.weight", t.pop(NORM)),
        [f"{NORM} is missing", "model.ln_f.weight is not part of the model"],
    ),
    "shape": (
        lambda t: t.__setitem__(NORM, torch.ones(35)),
        [f"{NORM} is [35], the configuration says [36]"],
    ),
    "extra": (
        lambda t: t.__setitem__("model.layers.3.mlp.up_proj.weight", torch.ones(44, 36)),
        ["model.layers.3.mlp.up_proj.weight is not part of the model"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tensors_that_do_not_fit(folder, fault):
    edit, expected = FAULTS[fault]
    change(folder, edit)
    with pytest.raises(ConvertError) as caught:
        read(folder)
    assert str(caught.value).splitlines()[1:] == [f"  - {problem}" for problem in expected]


def test_a_missing_shard(sharded):
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ConvertError, match=r"model-00002-of-00003.safetensors is missing, with \d+ tensors"):
        read(sharded)


def test_a_superfluous_shard(sharded):
    save_file({"x": torch.ones(1)}, sharded / "model-00004-of-00004.safetensors")
    with pytest.raises(ConvertError, match=r"model-00004-of-00004.safetensors is not in the index"):
        read(sharded)


@pytest.mark.parametrize("size", [0, 100, 30_000])
def test_a_truncated_shard(sharded, size):
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:size])
    with pytest.raises(ConvertError, match=r"model-00002-of-00003.safetensors is no sound safetensors file"):
        read(sharded)


def test_an_index_that_lies(sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    index["weight_map"][TABLE] = "model-00003-of-00003.safetensors"
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConvertError) as caught:
        read(sharded)
    assert f"{TABLE} is not in model-00003-of-00003.safetensors, where the index puts it" in str(caught.value)
    assert (
        f"{TABLE} is in model-00001-of-00003.safetensors and not in the index" not in str(caught.value).splitlines()[0]
    )


MASKS = [("bias", torch.ones(1, 1, 8, 8).tril().bool()), ("masked_bias", torch.tensor(-1e9))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ('{"weight_map": {', "is not JSON"),
        ("[1]", "holds a list"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": ["b"]}}', "has no weight_map"),
    ],
)
def test_a_damaged_index(sharded, content, message):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConvertError, match=rf"model.safetensors.index.json {message}"):
        read(sharded)


def test_pickles_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConvertError, match="pickled weights are not read"):
        read(folder)


def test_old_exports_carry_a_derived_table(folder):
    change(folder, lambda t: t.__setitem__("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(5)))
    assert len(read(folder).weights.shapes) == 30


def test_derived_tensors_may_have_any_dtype(tmp_path):
    """The causal mask of old GPT-NeoX folders has truth values, and says nothing about the dtype of the weights."""
    model = our_model("neox")
    weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
    export(model.config, weights, None, tmp_path / "out", dtype="float16")
    change(
        tmp_path / "out", lambda t: t.update({f"gpt_neox.layers.0.attention.{name}": tensor for name, tensor in MASKS})
    )
    found = read(tmp_path / "out")
    assert found.dtype == "float16" and list(found.weights) == list(weights)


@pytest.mark.parametrize("says", [True, "absent"])
@pytest.mark.parametrize("head", ["none", "equal", "different"])
def test_tied_embeddings_are_read_not_guessed(folder, says, head):
    def edit(tensors):
        if head == "none":
            tensors.pop(HEAD)
        elif head == "equal":
            tensors[HEAD] = tensors[TABLE].clone()

    change(folder, edit)
    rewrite(folder / "config.json", tie_word_embeddings=says)
    if (says, head) == (True, "different"):
        with pytest.raises(ConvertError, match=r"yet lm_head.weight differs from model.embed_tokens.weight"):
            read(folder)
    elif (says, head) == ("absent", "none"):
        with pytest.raises(ConvertError, match=r"lm_head.weight is missing\n.*has to say tie_word_embeddings: true"):
            read(folder)
    else:
        found = read(folder)
        assert found.config.tie_word_embeddings is (says is True) and (HEAD in found.weights.shapes) is (says != True)  # noqa: E712


BASE = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
}
LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("rope", "theta", "kind"),
    [
        ({"rope_theta": 250000.0}, 250000.0, None),
        ({"rope_theta": 250000, "rope_scaling": {"type": "linear", "factor": 2.0}}, 250000.0, "linear"),
        ({"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}}, 250000.0, None),
        ({"rope_parameters": {"rope_theta": 250000.0, "rope_type": "linear", "factor": 2.0}}, 250000.0, "linear"),
        ({"rope_theta": 5.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 5.0, "yarn"),
        ({}, 10000.0, None),
    ],
)
def test_rope_in_each_spelling(rope, theta, kind):
    config = of_settings(BASE).from_huggingface({**BASE, **rope})
    assert config.rope_theta == theta and getattr(config.rope_scaling, "type", None) == kind
    if kind == "yarn":
        assert config.rope_scaling.original_max_position_embeddings == 96


QWEN = {**BASE, "model_type": "qwen2", "num_key_value_heads": 2, "sliding_window": 16}


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({**BASE, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 16}, 16),
        ({**BASE, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": None}, None),
        ({**BASE, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 96}, None),
        ({**QWEN, "use_sliding_window": False, "max_window_layers": 0}, None),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 0}, 16),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 3}, None),
    ],
)
def test_windows(settings, window):
    assert of_settings(settings).from_huggingface(settings).sliding_window == window


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba' is not known here; megaxf has gpt2, gpt_neox, llama, "),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
        ({"attention_bias": True}, "attention_bias = True is not supported, only False"),
        ({"model_type": "mistral"}, "num_key_value_heads is missing, and MistralForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic' is not known here"),
        ({"rope_scaling": {**LINEAR, "beta": 1.0}}, "rope settings beta have no meaning for 'linear'"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "differ: [5.0, 6.0]"),
        ({"num_key_value_heads": 4}, "num_key_value_heads = 4 does not divide model.num_attention_heads = 6"),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 1}, "some layers have a sliding window"),
    ],
)
def test_settings_that_megaxf_has_not(changes, message):
    with pytest.raises(ConvertError) as caught:
        of_settings({**BASE, **changes}).from_huggingface({**BASE, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope_scaling": "linear"},
        {"rope_parameters": 1.5},
        {"rope_theta": "two"},
        {"model_type": []},
        {"model_type": "qwen2", "num_hidden_layers": "2", "use_sliding_window": True},
        {"eos_token_id": "2"},
        {"eos_token_id": [1.5]},
    ],
    ids=str,
)
def test_settings_of_a_wrong_kind_are_told(folder, wrong):
    rewrite(folder / "config.json", **wrong)
    (folder / "generation_config.json").write_text("{}")
    with pytest.raises(ConvertError):
        read(folder)

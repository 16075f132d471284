"""--verify passes sound outputs of every dtype, and finds a wrong setting or a wrong weight."""

import json

import pytest
from safetensors.torch import load_file, save_file

from megaxf.convert import gguf, huggingface
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form, Trained
from megaxf.convert.verify import compare

BLOCKS = {"hidden_size": 96, "intermediate_size": 128, "head_dim": 32}


def convert(target, out, config, weights, dtype):
    """(the difference of both sides) of a model written and read back."""
    model = Trained(config, weights, None, "float32", [])
    target.write(model, out, Form(dtype))
    return compare(model, target.reopen(model, out), lambda name, tensor: target.rounded(name, tensor, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_sound_folder(tmp_path, dtype, make_config, make_weights):
    config = make_config(sliding_window=7)
    found = convert(huggingface, tmp_path / "out", config, make_weights(config), dtype)
    assert found.other == "transformers' MistralForCausalLM" and found.tokens == 96
    assert found.late <= found.everywhere < 1e-4 < 1 < found.largest_logit


@pytest.mark.parametrize("kind", [{}, {"attention_bias": True}, {"qk_norm": True}])
@pytest.mark.parametrize("dtype", ["float16", "q8_0"])
def test_a_sound_file(tmp_path, kind, dtype, make_config, make_weights):
    config = make_config(**BLOCKS, **kind)
    found = convert(gguf, tmp_path / "m.gguf", config, make_weights(config), dtype)
    assert found.other == "megaxf's reader of gguf" and found.everywhere < 1e-4 < 1 < found.largest_logit


def test_a_wrong_setting_is_found(tmp_path, make_config, make_weights):
    config = make_config()
    model = Trained(config, make_weights(config), None, "float32", [])
    huggingface.write(model, tmp_path / "out", Form())
    path = tmp_path / "out/config.json"
    settings = json.loads(path.read_text())
    settings["rope_parameters"]["rope_theta"] = settings["rope_theta"] = 1777.0
    path.write_text(json.dumps(settings))
    with pytest.raises(
        ConvertError, match=r"the output does not compute what .* does: with transformers' LlamaForCausalLM"
    ):
        compare(model, huggingface.reopen(model, tmp_path / "out"), lambda name, tensor: tensor)


def test_a_wrong_weight_is_found(tmp_path, make_config, make_weights):
    config = make_config()
    model = Trained(config, make_weights(config), None, "float32", [])
    huggingface.write(model, tmp_path / "out", Form())
    tensors = load_file(tmp_path / "out/model.safetensors")
    tensors["model.layers.2.self_attn.k_proj.weight"][[0, 1]] = tensors["model.layers.2.self_attn.k_proj.weight"][
        [1, 0]
    ]
    save_file(tensors, tmp_path / "out/model.safetensors")
    with pytest.raises(ConvertError, match="it was not kept"):
        compare(model, huggingface.reopen(model, tmp_path / "out"), lambda name, tensor: tensor)

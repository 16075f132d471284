"""A GGUF file as the gguf package reads it: tensors, settings, tokenizer; and what is refused."""

import gguf
import numpy as np
import pytest
import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf import rounded, write
from megaxf.convert.gguf_layouts import neighbours
from megaxf.convert.interface import Form, Trained

FAMILIES = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "qwen2": {"attention_bias": True, "head_dim": 6},
    "biases": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
}
BLOCKS = {"hidden_size": 96, "intermediate_size": 128, "head_dim": 32, "num_attention_heads": 6}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}


def read(path):
    """(settings by key, tensors by name as fp32 arrays)"""
    reader = gguf.GGUFReader(path)
    settings = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {}
    for tensor in reader.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            tensors[tensor.name] = np.array(tensor.data)
        else:
            tensors[tensor.name] = gguf.dequantize(tensor.data, tensor.tensor_type)
    return settings, tensors


def convert(out, config, weights, tokenizer=None, eos_ids=(), **form):
    return write(Trained(config, weights, tokenizer, "float32", list(eos_ids)), out, Form(**form))


@pytest.mark.parametrize("kind", FAMILIES)
def test_tensors_and_settings_are_read_back(tmp_path, kind, make_config, make_weights):
    config = make_config(**FAMILIES[kind])
    weights = make_weights(config)
    written = convert(tmp_path / "m.gguf", config, weights)
    settings, tensors = read(tmp_path / "m.gguf")
    arch = {"tied": "llama", "biases": "llama"}.get(kind, kind)
    assert settings["general.architecture"] == arch
    size = config.head_dim
    expected = {
        "vocab_size": 320,
        "context_length": 96,
        "embedding_length": 36,
        "block_count": 3,
        "feed_forward_length": 44,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
    }
    assert {key: settings[f"{arch}.{key}"] for key in expected} == expected
    assert settings[f"{arch}.attention.layer_norm_rms_epsilon"] == pytest.approx(0.03)
    assert settings[f"{arch}.rope.freq_base"] == 777
    assert len(tensors) == len(weights) and written.size == sum(4 * w.numel() for w in weights.values())
    assert np.array_equal(tensors["token_embd.weight"], weights["model.embed_tokens.weight"].numpy())
    assert np.array_equal(tensors["blk.2.ffn_down.weight"], weights["model.layers.2.mlp.down_proj.weight"].numpy())
    assert ("output.weight" in tensors) is (kind != "tied")
    # Of each head of the architecture llama: dimensions 0, 5, 1, 6 ..., as pairs that turn together.
    heads = weights["model.layers.1.self_attn.k_proj.weight"].view(2, size, 36)
    order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9] if arch == "llama" else list(range(size))
    assert np.array_equal(tensors["blk.1.attn_k.weight"], heads[:, order].reshape(2 * size, 36).numpy())
    if kind == "biases":
        bias = weights["model.layers.1.self_attn.q_proj.bias"].view(6, size)
        assert np.array_equal(tensors["blk.1.attn_q.bias"], bias[:, order].reshape(-1).numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q8_0"])
def test_matrices_take_the_dtype_and_vectors_stay_fp32(tmp_path, dtype, make_config, make_weights):
    config = make_config(**BLOCKS)
    weights = make_weights(config)
    written = convert(tmp_path / "m.gguf", config, weights, dtype=dtype)
    settings, tensors = read(tmp_path / "m.gguf")
    assert settings["general.file_type"] == {"float16": 1, "bfloat16": 32, "q8_0": 7}[dtype]
    table, norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
    if dtype == "q8_0":
        kind = gguf.GGMLQuantizationType.Q8_0
        expected = gguf.dequantize(gguf.quantize(table.numpy(), kind), kind)
        assert np.abs(expected - table.numpy()).max() < table.abs().max() / 127
    else:
        expected = table.to(getattr(torch, dtype)).float().numpy()
    assert np.array_equal(tensors["token_embd.weight"], expected)
    assert np.array_equal(tensors["output_norm.weight"], norm.numpy())
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    short = {"float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}[dtype]
    assert {kind for name, kind in types.items() if "norm" not in name} == {short}
    assert written.size == sum(int(t.n_bytes) for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors)


def test_rows_without_whole_blocks_stand_in_float16(tmp_path, make_config, make_weights):
    config = make_config(**{**BLOCKS, "intermediate_size": 44})
    weights = make_weights(config)
    written = convert(tmp_path / "m.gguf", config, weights, dtype="q8_0")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert written.notes == ["3 matrices have rows that are no multiple of 32 and stand in float16"]
    down = weights["model.layers.0.mlp.down_proj.weight"]
    assert np.array_equal(read(tmp_path / "m.gguf")[1]["blk.0.ffn_down.weight"], down.half().float().numpy())
    assert torch.equal(rounded("down_proj", down, "q8_0"), down.half().float())


def test_interleaving_is_llama_cpps():
    """As `LlamaModel.permute` of llama.cpp's converter, written out."""
    rows = torch.arange(24).view(12, 2)
    assert neighbours(2, 6).apply(rows)[:, 0].tolist() == [0, 6, 2, 8, 4, 10, 12, 18, 14, 20, 16, 22]


def test_rotary_settings(tmp_path, make_config, make_weights):
    def settings_of(**scaling):
        config = make_config(rope_scaling=scaling)
        convert(tmp_path / "m.gguf", config, make_weights(config), overwrite=True)
        return read(tmp_path / "m.gguf")

    found, _ = settings_of(type="linear", factor=3.0)
    assert found["llama.rope.scaling.type"] == "linear" and found["llama.rope.scaling.factor"] == 3
    found, _ = settings_of(type="ntk", factor=3.0)
    assert found["llama.rope.freq_base"] == pytest.approx(777 * 3 ** (10 / 8))
    found, _ = settings_of(**YARN, attention_factor=0.7)
    assert found["llama.rope.scaling.original_context_length"] == 24
    assert found["llama.rope.scaling.attn_factor"] == pytest.approx(0.7 / (0.1 * np.log(4) + 1))
    found, tensors = settings_of(**YARN, beta_fast=9.0)
    # The ramp of arXiv 2309.00071 goes from pair 0 to 2: kept, half and half, divided by 4 three times.
    assert tensors["rope_freqs.weight"] == pytest.approx([1, 1.6, 4, 4, 4]) and "llama.rope.scaling.type" not in found
    assert found["llama.rope.scaling.attn_factor"] == pytest.approx(0.1 * np.log(4) + 1)
    llama3 = {"original_max_position_embeddings": 24, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    _, tensors = settings_of(type="llama3", factor=4.0, **llama3)
    # Wave lengths 6.3, 24, 90 ... positions: below 6 kept, above 24 divided by 4, a blend between (arXiv 2407.21783).
    waves = 2 * np.pi * 777 ** (np.arange(5) / 5)
    blend = np.clip((24 / waves - 1) / 3, 0, 1)
    assert tensors["rope_freqs.weight"] == pytest.approx(1 / ((1 - blend) / 4 + blend), rel=1e-6)


def test_a_window_becomes_the_context(tmp_path, make_config, make_weights):
    config = make_config(sliding_window=7)
    written = convert(tmp_path / "m.gguf", config, make_weights(config))
    assert read(tmp_path / "m.gguf")[0]["llama.context_length"] == 7
    assert "no sliding window" in written.notes[0] and "7 tokens" in written.notes[0]


REFUSED = {
    "both": ({"attention_bias": True, "qk_norm": True}, {}, "both biases"),
    "dtype": ({}, {"dtype": "int4"}, "--dtype int4 is not one that this format has"),
    "shards": ({}, {"max_shard_size": 5}, "--max-shard-size has no effect"),
    "ends": ({}, {"eos_ids": [1, 2, 3, 4]}, "4 tokens end a text"),
    "small": ({"vocab_size": 300}, {}, "the tokenizer has 310 tokens and model.vocab_size = 300"),
    "ramp": ({"rope_scaling": {**YARN, "truncate": False}, "qk_norm": True}, {}, "qwen3 has no table of frequencies"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_has_not_is_refused(tmp_path, name, make_config, make_weights, tokenizer_folder):
    changes, form, message = REFUSED[name]
    config = make_config(**changes)
    with pytest.raises(ConvertError, match=message.replace(".", r"\.")):
        convert(tmp_path / "m.gguf", config, make_weights(config), tokenizer_folder, **form)
    assert list(tmp_path.iterdir()) == []


def test_missing_superfluous_and_too_large(tmp_path, make_config, make_weights):
    config = make_config()
    weights = make_weights(config)
    weights["model.extra.weight"] = weights.pop("model.norm.weight")
    with pytest.raises(ConvertError, match=r"model.norm.weight is missing\n  - model.extra.weight is not part"):
        convert(tmp_path / "m.gguf", config, weights)
    weights = make_weights(config)
    weights["lm_head.weight"][0, 0] = 7e4
    with pytest.raises(ConvertError, match=r"lm_head.weight has values beyond 65504"):
        convert(tmp_path / "m.gguf", config, weights, dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_never_replaced(tmp_path, make_config, make_weights):
    (tmp_path / "m.gguf").write_text("a thesis")
    config = make_config()
    with pytest.raises(ConvertError, match="exists and is no earlier output; choose another name"):
        convert(tmp_path / "m.gguf", config, make_weights(config), overwrite=True)
    assert (tmp_path / "m.gguf").read_text() == "a thesis"
    convert(tmp_path / "n.gguf", config, make_weights(config))
    with pytest.raises(ConvertError, match="pass --overwrite"):
        convert(tmp_path / "n.gguf", config, make_weights(config))

"""GGUF as a source: what we wrote comes back, and what others write is read or refused with the reason."""

import json

import gguf
import numpy as np
import pytest
import torch

from data_pipeline.tokenizer.base import load_tokenizer
from launch.megaxf import main
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf import read, recognises, rounded, write
from megaxf.convert.gguf_settings import FREQUENCIES
from megaxf.convert.interface import Form, Trained
from tests.convert.conftest import TEXT, Weights
from tests.convert.own_tokenizers import TEXTS, TOKENIZERS
from tests.parity.families import our_model

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMAS = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "qwen2": {"attention_bias": True, "head_dim": 6},
    "biases": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "yarn": {"rope_scaling": {**YARN, "attention_factor": 0.75}},
    "llama3": {"rope_scaling": {"type": "llama3", "factor": 8.0, **LLAMA3}, "rope_theta": 5e5, "head_dim": 64},
}
DEFAULT = {"initializer_range": 0.02}  # which the file does not say


def convert(out, config, weights, tokenizer=None, **form):
    write(Trained(config, weights, tokenizer, "float32", []), out, Form(**form))
    return out


@pytest.mark.parametrize("kind", LLAMAS)
def test_a_llama_comes_back(tmp_path, kind, make_config, make_weights):
    config = make_config(**LLAMAS[kind], **DEFAULT)
    weights = make_weights(config)
    found = read(convert(tmp_path / "m.gguf", config, weights))
    if kind == "yarn":
        factor = found.config.rope_scaling.attention_factor
        assert factor == pytest.approx(0.75, rel=1e-6)
        found = found._replace(config=make_config(**LLAMAS[kind], **DEFAULT))
    assert found.config == config and (found.dtype, found.tokenizer, found.eos_ids) == ("float32", None, [])
    assert list(found.weights) == list(weights)
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)


@pytest.mark.parametrize("case", ["gpt2", "gpt2, untied, large eps", "neox"])
def test_the_other_families_come_back(tmp_path, case):
    model = our_model(case)
    weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
    found = read(convert(tmp_path / "m.gguf", model.config, weights))
    assert found.config == model.config.model_copy(update=DEFAULT)
    assert list(found.weights) == list(weights)
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q8_0"])
def test_dtypes(tmp_path, dtype, make_config, make_weights):
    """fp32 is what loses nothing of quantised values, and of vectors in fp32 beside bf16 matrices."""
    config = make_config(hidden_size=96, intermediate_size=128, head_dim=32, **DEFAULT)
    weights = make_weights(config)
    found = read(convert(tmp_path / "m.gguf", config, weights, dtype=dtype))
    assert found.dtype == "float32"
    assert all(torch.equal(found.weights[name], rounded(name, weights[name], dtype)) for name in weights)
    if dtype != "q8_0":
        narrow = Weights({name: weight.to(getattr(torch, dtype)).float() for name, weight in weights.items()})
        found = read(convert(tmp_path / "n.gguf", config, narrow, dtype=dtype))
        assert found.dtype == dtype and all(torch.equal(found.weights[name], narrow[name]) for name in narrow)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_give_the_same_ids(tmp_path, name, make_config, make_weights):
    TOKENIZERS[name](tmp_path / "tokenizer")
    ours = load_tokenizer(tmp_path / "tokenizer")
    config = make_config()
    found = read(convert(tmp_path / "m.gguf", config, make_weights(config), tmp_path / "tokenizer"))
    theirs = load_tokenizer(found.tokenizer)
    assert (theirs.eod_id, theirs.bos_id, found.eos_ids) == (ours.eod_id, ours.bos_id, [ours.eod_id])
    for text in [*TEXTS, TEXT]:
        ids = ours.encode(text)
        assert theirs.encode(text) == ids and theirs.decode(ids) == ours.decode(ids), text


def test_the_commands_take_a_file(tmp_path, make_config, make_weights, tokenizer_folder, capsys):
    config = make_config()
    file = convert(tmp_path / "m.gguf", config, make_weights(config), tokenizer_folder)
    assert main(["convert", str(file), str(tmp_path / "hf"), "--verify"]) == 0
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "again.gguf")]) == 0
    first, second = (gguf.GGUFReader(path) for path in (file, tmp_path / "again.gguf"))
    assert all(np.array_equal(one.data, two.data) for one, two in zip(first.tensors, second.tensors, strict=True))
    capsys.readouterr()
    answers = []
    for source in (file, tmp_path / "hf"):
        asked = ["generate", str(source), "--prompt", "def f(x):", "--max-new-tokens", "8", "--json"]
        assert main(asked) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1] and answers[0]["tokens"]


def edited(path, out, drop=(), **changes):
    """A file with other settings, or without some tensors."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, changes.pop("architecture", "llama"))
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, changes.pop(key, field.contents()), field.types[0])
    for tensor in reader.tensors:
        if tensor.name not in drop:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    for name, values in changes.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_what_is_not_known_is_refused(tmp_path, make_config, make_weights):
    config = make_config()
    file = convert(tmp_path / "m.gguf", config, make_weights(config))
    with pytest.raises(ConvertError, match="architecture 'mamba' is not read, only llama, qwen2"):
        read(edited(file, tmp_path / "a.gguf", architecture="mamba"))
    with pytest.raises(ConvertError, match=r"model.layers.1.mlp.up_proj.weight is missing"):
        read(edited(file, tmp_path / "b.gguf", drop=["blk.1.ffn_up.weight"]))
    with pytest.raises(ConvertError, match=r"extra.weight is not part of the model"):
        read(edited(file, tmp_path / "c.gguf", **{"extra.weight": np.ones(3, np.float32)}))
    with pytest.raises(ConvertError, match=r"embed_tokens.weight is \[320, 36\], the configuration says \[320, 42\]"):
        read(edited(file, tmp_path / "d.gguf", **{"llama.embedding_length": 42}))
    table = np.array([1, 2, 1, 2, 1], np.float32)
    with pytest.raises(ConvertError, match=f"{FREQUENCIES} is no stretch that megaxf knows"):
        read(edited(file, tmp_path / "e.gguf", **{FREQUENCIES: table}))
    with pytest.raises(ConvertError, match="a tokenizer of kind 'bert' with 0 tokens"):
        read(edited(file, tmp_path / "f.gguf", **{"tokenizer.ggml.model": "bert"}))


def test_a_file_that_is_cut(tmp_path, make_config, make_weights):
    config = make_config()
    content = convert(tmp_path / "m.gguf", config, make_weights(config)).read_bytes()
    for size in (6, 200, len(content) // 2):
        (tmp_path / "cut.gguf").write_bytes(content[:size])
        assert recognises(tmp_path / "cut.gguf")
        with pytest.raises(ConvertError, match=r"cut.gguf is no sound GGUF file"):
            read(tmp_path / "cut.gguf")
    assert not recognises(tmp_path) and not recognises(tmp_path / "nothing")


def changed(path, out, changes):
    """The file with some settings changed: key -> value, type."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in (*changes, "general.architecture"):
            of_items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], of_items)
    for key, (value, kind) in changes.items():
        writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


FLOAT, INTEGER = gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.UINT32


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("rope.dimension_count", 4, INTEGER),
        ("rope.scale_linear", 4.0, FLOAT),
        ("rope.scaling.yarn_ext_factor", 0.5, FLOAT),
        ("attention.head_count", 0, INTEGER),
        ("block_count", "3", gguf.GGUFValueType.STRING),
    ],
)
def test_settings_that_would_give_other_numbers_are_refused(tmp_path, key, value, kind, make_config, make_weights):
    config = make_config(**DEFAULT)
    whole = convert(tmp_path / "m.gguf", config, make_weights(config))
    with pytest.raises(ConvertError, match=rf"{key} = '?{value}"):
        read(changed(whole, tmp_path / "n.gguf", {f"llama.{key}": (value, kind)}))


def test_the_ramp_of_yarn_is_read(tmp_path, make_config, make_weights):
    config = make_config(rope_scaling=YARN, **DEFAULT)
    whole = convert(tmp_path / "m.gguf", config, make_weights(config))
    betas = {"beta_fast": 8.0, "beta_slow": 2.0}
    found = read(
        changed(whole, tmp_path / "n.gguf", {f"llama.rope.scaling.yarn_{k}": (v, FLOAT) for k, v in betas.items()})
    )
    assert {beta: getattr(found.config.rope_scaling, beta) for beta in betas} == betas

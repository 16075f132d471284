"""Megatron-LM's files, against ones that are made here head by head, as its documentation has the layout."""

import shutil
from argparse import Namespace
from enum import Enum

import pytest
import torch

from megaxf.convert import huggingface, megatron, registry
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form, Trained

FILE = "model_optim_rng.pt"
PADDED = {1: 384, 2: 512, 4: 512}
"""320 tokens by tensor-parallel ranks, as multiples of 128 x ranks."""


class Backend(Enum):
    """Stands for Megatron-LM's own classes among the arguments."""

    FLASH = 1


def arguments(config, ranks, stages, **changes):
    """What Megatron-LM's parser would have made."""
    found = {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "group_query_attention": config.num_key_value_heads < config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "kv_channels": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "position_embedding_type": "rope",
        "rotary_base": 777,
        "norm_epsilon": config.rms_norm_eps,
        "init_method_std": config.initializer_range,
        "swiglu": True,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "add_qkv_bias": config.attention_bias,
        "qk_layernorm": config.qk_norm,
        "untie_embeddings_and_output_weights": not config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": PADDED[ranks],
        "tensor_model_parallel_size": ranks,
        "pipeline_model_parallel_size": stages,
        "attention_backend": Backend.FLASH,
    }
    return Namespace(**(found | changes))


def rows(tensor, head, config):
    """The rows of one head."""
    return tensor[head * config.head_dim : (head + 1) * config.head_dim]


def fused(layer, kind, config):
    """q q q k v, q q q k v: the heads of all groups."""
    of_group = config.num_attention_heads // config.num_key_value_heads
    pieces = []
    for group in range(config.num_key_value_heads):
        for head in range(group * of_group, (group + 1) * of_group):
            pieces.append(rows(layer[f"self_attn.q_proj.{kind}"], head, config))
        pieces.append(rows(layer[f"self_attn.k_proj.{kind}"], group, config))
        pieces.append(rows(layer[f"self_attn.v_proj.{kind}"], group, config))
    return torch.cat(pieces)


def state(config, weights, ranks, rank, layers, first, last, fill):
    """One rank's tensors, by Transformer Engine's names."""

    def part(tensor, dim=0):
        size = tensor.shape[dim] // ranks
        return tensor.narrow(dim, rank * size, size).clone()

    def padded(tensor):
        return part(torch.cat([tensor, fill(tensor).expand(PADDED[ranks] - len(tensor), -1)]))

    made = {"embedding.word_embeddings.weight": padded(weights["model.embed_tokens.weight"])} if first else {}
    for number, index in enumerate(layers):
        start = f"model.layers.{index}."
        layer = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        own = {
            "self_attention.linear_qkv.layer_norm_weight": layer["input_layernorm.weight"],
            "self_attention.linear_qkv.weight": part(fused(layer, "weight", config)),
            "self_attention.linear_proj.weight": part(layer["self_attn.o_proj.weight"], dim=1),
            "mlp.linear_fc1.layer_norm_weight": layer["post_attention_layernorm.weight"],
            "mlp.linear_fc1.weight": torch.cat(
                [part(layer["mlp.gate_proj.weight"]), part(layer["mlp.up_proj.weight"])]
            ),
            "mlp.linear_fc2.weight": part(layer["mlp.down_proj.weight"], dim=1),
        }
        if config.attention_bias:
            own["self_attention.linear_qkv.bias"] = part(fused(layer, "bias", config))
        if config.qk_norm:
            own |= {f"self_attention.{x}_layernorm.weight": layer[f"self_attn.{x}_norm.weight"] for x in "qk"}
        made |= {f"decoder.layers.{number}.{name}": tensor for name, tensor in own.items()}
    if last:
        made["decoder.final_layernorm.weight"] = weights["model.norm.weight"]
        if not config.tie_word_embeddings:
            made["output_layer.weight"] = padded(weights["lm_head.weight"])
        elif not first:
            made["output_layer.weight"] = padded(weights["model.embed_tokens.weight"])
    return made


def last_row(tensor):
    return tensor[-1:]


def states(config, weights, ranks, stages, fill=last_row):
    """{(rank, stage): tensors}"""
    size = config.num_hidden_layers // stages
    return {
        (rank, stage): state(
            config,
            weights,
            ranks,
            rank,
            range(stage * size, (stage + 1) * size),
            stage == 0,
            stage == stages - 1,
            fill,
        )
        for rank in range(ranks)
        for stage in range(stages)
    }


def name(rank, stage, stages):
    return f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")


def make(folder, config, weights, ranks=1, stages=1, local=False, **changes):
    """A folder as Megatron-LM saves it at iteration 10."""
    found = arguments(config, ranks, stages, **changes)
    for (rank, stage), tensors in states(
        config, weights, ranks, stages, lambda tensor: torch.full_like(tensor[:1], 9e9)
    ).items():
        if local:  # The names without Transformer Engine.
            short = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight"}
            short |= {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"}
            for long, other in short.items():
                tensors = {key.replace(long, other): tensor for key, tensor in tensors.items()}
        else:
            tensors["decoder.layers.0.mlp.linear_fc1._extra_state"] = None
        place = folder / "iter_0000010" / name(rank, stage, stages)
        place.mkdir(parents=True)
        torch.save({"args": found, "checkpoint_version": 3.0, "iteration": 10, "model": tensors}, place / FILE)
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    return folder


MODELS = {
    "llama": {},
    "biases": {"attention_bias": True},
    "norms": {"qk_norm": True},
    "tied": {"tie_word_embeddings": True},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_attention_heads": 4, "num_key_value_heads": 1},
}
CASES = [(model, 2, 3) for model in MODELS] + [
    ("llama", 1, 1),
    ("llama", 1, 3),
    ("biases", 2, 1),
    ("multi-query", 4, 1),
]


@pytest.fixture
def model(make_config, make_weights):
    def of(kind):
        config = make_config(**MODELS[kind])
        return config, make_weights(config)

    return of


@pytest.mark.parametrize(("kind", "ranks", "stages"), CASES)
def test_files_are_read(tmp_path, model, kind, ranks, stages):
    config, weights = model(kind)
    folder = make(tmp_path, config, weights, ranks, stages, local=kind == "llama")
    assert registry.format_of(folder) == "megatron"
    found = megatron.read(folder)
    assert found.config == config and found.dtype == "float32"
    assert list(found.weights) == list(weights)
    for key, tensor in weights.items():
        assert torch.equal(found.weights[key], tensor), key


@pytest.mark.parametrize(("kind", "ranks", "stages"), CASES)
def test_files_are_written(tmp_path, model, kind, ranks, stages):
    config, weights = model(kind)
    form = Form(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
    megatron.write(Trained(config, weights, None, "float32", [7]), tmp_path / "out", form)
    assert (tmp_path / "out/latest_checkpointed_iteration.txt").read_text() == "release"
    expected = states(config, weights, ranks, stages)
    assert {path.name for path in (tmp_path / "out/release").iterdir()} == {name(*place, stages) for place in expected}
    for place, tensors in expected.items():
        content = torch.load(tmp_path / "out/release" / name(*place, stages) / FILE, weights_only=False)
        wanted = arguments(config, ranks, stages)
        del wanted.attention_backend
        assert vars(wanted).items() <= vars(content["args"]).items() and content["checkpoint_version"] == 3.0
        assert set(content["model"]) == set(tensors)
        for key, tensor in tensors.items():
            assert torch.equal(content["model"][key], tensor), (place, key)
    back = megatron.read(tmp_path / "out")
    assert back.config == config and back.eos_ids == [7]
    assert all(torch.equal(back.weights[key], tensor) for key, tensor in weights.items())


def test_a_narrower_dtype(tmp_path, model):
    config, weights = model("llama")
    megatron.write(Trained(config, weights, None, "float32", []), tmp_path / "out", Form(dtype="bfloat16"))
    found = megatron.read(tmp_path / "out")
    assert found.dtype == "bfloat16"
    assert all(torch.equal(found.weights[key], tensor.bfloat16()) for key, tensor in weights.items())


def test_interleaved_stages(tmp_path, make_config, make_weights):
    """Stage 0 has layers 0 and 2, stage 1 has 1 and 3."""
    config = make_config(num_hidden_layers=4)
    weights = make_weights(config)
    for stage in range(2):
        chunks = {
            f"model{chunk}": state(
                config, weights, 1, 0, [stage + 2 * chunk], stage + chunk == 0, stage + chunk == 2, last_row
            )
            for chunk in range(2)
        }
        place = tmp_path / "iter_0000010" / name(0, stage, 2)
        place.mkdir(parents=True)
        torch.save({"args": arguments(config, 1, 2), **chunks}, place / FILE)
    found = megatron.read(tmp_path / "iter_0000010")
    assert all(torch.equal(found.weights[key], tensor) for key, tensor in weights.items())


def edit(folder, place, change):
    path = folder / "iter_0000010" / place / FILE
    content = torch.load(path, weights_only=False)
    change(content["model"])
    torch.save(content, path)


def test_each_wrong_tensor_is_named(tmp_path, model):
    folder = make(tmp_path, *model("llama"), 2, 3)

    def spoil(tensors):
        del tensors["decoder.layers.0.mlp.linear_fc2.weight"]
        tensors["decoder.layers.0.extra.weight"] = torch.ones(1)
        key = "decoder.layers.0.self_attention.linear_qkv.weight"
        tensors[key] = tensors[key][:-10].clone()

    for rank in range(2):
        edit(folder, f"mp_rank_0{rank}_001", spoil)
    with pytest.raises(ConvertError) as caught:
        megatron.read(folder)
    said = str(caught.value)
    assert "decoder.layers.1.mlp.linear_fc2.weight is missing" in said
    assert "decoder.layers.1.extra.weight is not part of the model" in said
    assert "decoder.layers.1.self_attention.linear_qkv.weight of rank 0 is [40, 36], the arguments say [50, 36]" in said


def test_copies_have_to_be_equal(tmp_path, model):
    folder = make(tmp_path / "a", *model("llama"), 2)
    edit(folder, "mp_rank_01", lambda tensors: tensors["decoder.final_layernorm.weight"].add_(1))
    with pytest.raises(ConvertError, match=r"decoder.final_layernorm.weight differs between the tensor-parallel ranks"):
        megatron.read(folder).weights["model.norm.weight"]
    folder = make(tmp_path / "b", *model("tied"), 1, 3)
    edit(folder, "mp_rank_00_002", lambda tensors: tensors["output_layer.weight"].add_(1))
    with pytest.raises(ConvertError, match=r"tie the embeddings, yet output_layer.weight differs"):
        megatron.read(folder)


def test_a_missing_rank(tmp_path, model):
    folder = make(tmp_path, *model("llama"), 2, 3)
    shutil.rmtree(folder / "iter_0000010/mp_rank_01_002")
    with pytest.raises(
        ConvertError, match=r"saved by 2 tensor-parallel ranks x 3 stages:\n  - rank 1 of stage 2 is missing"
    ):
        megatron.read(folder)


def test_how_many_rows_are_tokens_is_not_guessed(tmp_path, model, tokenizer_folder):
    config, weights = model("llama")
    folder = make(tmp_path, config, weights, vocab_size=None)
    with pytest.raises(ConvertError, match=r"how many of its 384 rows are tokens; copy the model's config.json or"):
        megatron.read(folder)
    shutil.copy(tokenizer_folder / "tokenizer.model", folder)
    assert len(megatron.read(folder).weights["lm_head.weight"]) == 310
    huggingface.describe(Trained(config, weights, None, "float32", []), folder, "float32")
    assert len(megatron.read(folder).weights["lm_head.weight"]) == 320
    other = config.model_copy(update={"rms_norm_eps": 0.5})
    huggingface.describe(Trained(other, weights, None, "float32", []), folder, "float32")
    with pytest.raises(ConvertError, match=r"another model:\n  - rms_norm_eps = 0.5, and the arguments say 0.03"):
        megatron.read(folder)


def test_models_that_are_none_of_megaxf(tmp_path, model):
    folder = make(tmp_path, *model("llama"), normalization="LayerNorm", num_experts=8, kv_channels=None)
    with pytest.raises(ConvertError) as caught:
        megatron.read(folder)
    for part in ("kv_channels is missing", "normalization = 'LayerNorm' is not", "num_experts = 8 is not supported"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "form", "message"),
    [
        ({"sliding_window": 7}, {}, "sliding_window = 7 is not written"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {}, "has only type llama3"),
        ({}, {"tensor_parallel_size": 0}, "are numbers of ranks: 1 or more"),
        ({}, {"tensor_parallel_size": 3}, "3 does not divide intermediate_size = 44"),
        ({"num_attention_heads": 12, "num_key_value_heads": 6}, {"tensor_parallel_size": 4}, "none divides the other"),
        ({}, {"pipeline_parallel_size": 2}, "2 does not divide num_hidden_layers = 3"),
        ({}, {"max_shard_size": 5}, "--max-shard-size has no effect with --to megatron"),
        ({}, {"dtype": "float16"}, "--dtype float16 is not one"),
    ],
)
def test_what_is_not_written(tmp_path, make_config, make_weights, changes, form, message):
    config = make_config(**changes)
    with pytest.raises(ConvertError, match=message):
        megatron.write(Trained(config, make_weights(config), None, "float32", []), tmp_path / "out", Form(**form))
    assert list(tmp_path.iterdir()) == []


def test_llama3_scaling_goes_both_ways(tmp_path, make_config, make_weights):
    scaling = {"type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192}
    config = make_config(rope_scaling=scaling | {"low_freq_factor": 1.0, "high_freq_factor": 4.0})
    megatron.write(Trained(config, make_weights(config), None, "float32", []), tmp_path / "out", Form())
    (tmp_path / "out/config.json").unlink()
    assert megatron.read(tmp_path / "out").config == config

"""What transformers makes of an exported folder: the same architecture, settings, logits, loss and greedy tokens."""

import json

import pytest
import torch
import transformers

from megaxf.convert.errors import ConvertError
from megaxf.convert.huggingface import read
from tests.convert.conftest import assert_same_files, export

LENGTH = 48

MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 7}),
    "uneven": ("MistralForCausalLM", {"hidden_size": 34}),
    "qwen2": ("Qwen2ForCausalLM", {"attention_bias": True}),
    "qwen2-window": ("Qwen2ForCausalLM", {"attention_bias": True, "sliding_window": 7}),
    "qwen3": ("Qwen3ForCausalLM", {"qk_norm": True}),
    "qwen3-window": ("Qwen3ForCausalLM", {"qk_norm": True, "sliding_window": 7}),
    "linear": ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 3.0}}),
    "ntk": ("LlamaForCausalLM", {"rope_scaling": {"type": "ntk", "factor": 3.0}}),
    "yarn": (
        "LlamaForCausalLM",
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}},
    ),
    "llama3": (
        "LlamaForCausalLM",
        {
            "rope_scaling": {
                "type": "llama3",
                "factor": 4.0,
                "original_max_position_embeddings": 24,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        },
    ),
}


@pytest.fixture
def tokens():
    return torch.randint(0, 320, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", MODELS)
def test_transformers_agrees(name, tmp_path, make_config, make_weights, load, tokens):
    architecture, changes = MODELS[name]
    config = make_config(**changes)
    weights = make_weights(config)
    export(config, weights, None, tmp_path / "out", dtype="float32")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert type(oracle).__name__ == architecture and oracle.dtype == torch.float32
    ours = load(config, weights)
    with torch.no_grad():
        theirs = oracle(tokens, labels=tokens)
        logits = ours.logits(ours(tokens))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert theirs.logits.abs().max() > 1
    assert torch.allclose(logits, theirs.logits, rtol=1e-5, atol=1e-5), (logits - theirs.logits).abs().amax((0, 2))
    assert loss.item() == pytest.approx(theirs.loss.item(), rel=1e-5)
    back = read(tmp_path / "out")
    assert list(back.weights.shapes) == list(weights)
    assert all(torch.equal(back.weights[tensor], weights[tensor]) for tensor in weights)
    if name == "ntk":  # Exported as the larger theta that it is.
        assert back.config.rope_theta == pytest.approx(777 * 3 ** (10 / 8)) and back.config.rope_scaling is None
    else:
        assert back.config == config
    export(back.config, back.weights, None, tmp_path / "again", dtype=back.dtype)
    assert_same_files(tmp_path / "out", tmp_path / "again")


def test_settings_come_back(tmp_path, make_config, make_weights):
    config = make_config(rope_theta=250000.0)
    export(config, make_weights(config), None, tmp_path / "out", dtype="float32")
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (theirs.rms_norm_eps, theirs.max_position_embeddings, theirs.initializer_range) == (0.03, 96, 0.013)
    assert (theirs.head_dim, theirs.tie_word_embeddings, theirs.vocab_size) == (10, False, 320)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (None, None, None)
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 250000.0}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(250000 ** (-2 / 10), rel=1e-6)


def test_older_transformers_find_their_spelling(tmp_path, make_config, make_weights):
    config = make_config(**MODELS["llama3"][1])
    export(config, make_weights(config), None, tmp_path / "out")
    settings = json.loads((tmp_path / "out/config.json").read_text())
    stretch = {
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_type": "llama3",
    }
    assert settings["rope_theta"] == 777.0 and settings["rope_scaling"] == {**stretch, "type": "llama3"}
    assert settings["rope_parameters"] == {**stretch, "rope_theta": 777.0}
    assert settings["torch_dtype"] == settings["dtype"] == "bfloat16"


def test_no_architecture_has_both(tmp_path, make_config, make_weights):
    config = make_config(attention_bias=True, qk_norm=True)
    with pytest.raises(ConvertError, match=r"biases on q, k, v .* and norms on q and k"):
        export(config, make_weights(config), None, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

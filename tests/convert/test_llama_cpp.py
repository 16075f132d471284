"""What llama.cpp makes of an exported file: the same ids for a text, the same logits, the same greedy tokens.

`make test-llama-cpp` builds llama.cpp from its Python package's sources, which takes minutes, and runs these.
"""

import numpy as np
import pytest
import torch

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf import write
from megaxf.convert.interface import Form, Trained
from tests.convert.conftest import TEXT, Weights
from tests.convert.own_tokenizers import TEXTS, TOKENIZERS
from tests.convert.test_gguf_families import WRITTEN
from tests.parity.families import our_model

llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is built and tested by `make test-llama-cpp`")

LENGTH, PROMPT = 64, 40
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {"original_max_position_embeddings": 24, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "window": {"sliding_window": 70},
    "qwen2": {"attention_bias": True, "head_dim": 6},
    "biases": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "ntk": {"rope_scaling": {"type": "ntk", "factor": 3.0}},
    "yarn": {"rope_scaling": YARN},
    "yarn-factor": {"rope_scaling": {**YARN, "attention_factor": 0.7}},
    "yarn-ramp": {"rope_scaling": {**YARN, "beta_fast": 20.0, "beta_slow": 0.4, "truncate": False}},
    "yarn-qwen3": {"rope_scaling": YARN, "qk_norm": True},
    "llama3": {"rope_scaling": {"type": "llama3", "factor": 4.0, **LLAMA3}},
}


def open_file(path, n_ctx=96):
    """llama.cpp with its cache in fp32, so that logits can be compared."""
    return llama_cpp.Llama(
        str(path), n_ctx=n_ctx, logits_all=True, type_k=0, type_v=0, n_threads=1, n_threads_batch=1, verbose=False
    )


def compare(ours, theirs, vocab_size):
    """(largest difference of logits of a prompt, largest logit); the greedy tokens after it have to be equal."""
    tokens = torch.randint(vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(3))
    theirs.eval(tokens[0].tolist())
    with torch.no_grad():
        logits = ours.logits(ours(tokens))[0].numpy()
        found = np.array(theirs.scores[:PROMPT])
        while tokens.shape[1] < LENGTH:
            tokens = torch.cat([tokens, ours.logits(ours(tokens))[:, -1].argmax(-1, keepdim=True)], dim=1)
    greedy = []
    for _ in range(LENGTH - PROMPT):
        greedy.append(int(np.argmax(theirs.scores[theirs.n_tokens - 1])))
        theirs.eval(greedy[-1:])
    assert greedy == tokens[0, PROMPT:].tolist()
    return np.abs(found - logits).max(), np.abs(logits).max()


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens(tmp_path, name, make_config, make_weights, load, tokenizer_folder):
    config = make_config(**MODELS[name])
    weights = make_weights(config)
    write(Trained(config, weights, tokenizer_folder, "float32", []), tmp_path / "m.gguf", Form())
    apart, largest = compare(load(config, weights), open_file(tmp_path / "m.gguf"), 310)
    assert apart < 1e-4 < 1 < largest


@pytest.mark.parametrize("case", WRITTEN)
def test_other_families(tmp_path, case):
    """llama.cpp takes the GELU from a table in fp16, and has but its tanh approximation.

    Three prompts each differed by up to 0.0011 (GPT-2) and 0.0015 (GPT-NeoX) at logits of up to 5.
    """
    model = our_model(case).eval()
    weights = Weights({name: parameter.detach() for name, parameter in model.named_parameters()})
    write(Trained(model.config, weights, None, "float32", []), tmp_path / "m.gguf", Form())
    apart, largest = compare(model, open_file(tmp_path / "m.gguf", n_ctx=64), 101)
    assert apart < 5e-3 < 1 < largest


@pytest.mark.parametrize("through", ["checkpoint", "huggingface"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_of_a_text(tmp_path, name, through, make_config, make_weights):
    folder = tmp_path / "checkpoint"
    TOKENIZERS[name](folder)
    ours = load_tokenizer(folder)
    texts = TEXTS
    if name == "unigram":
        texts = [text for text in TEXTS if set(text) <= set(TEXT)]
        assert len(texts) > 3
    if through == "huggingface":
        export_tokenizer(folder, tmp_path / "huggingface", max_length=96)
    config = make_config()
    model = Trained(config, make_weights(config), tmp_path / through, "float32", [])
    if (name, through) == ("unigram", "huggingface"):
        with pytest.raises(ConvertError, match="a Unigram tokenizer of this form is not written to GGUF"):
            write(model, tmp_path / "m.gguf", Form())
        return
    notes = write(model, tmp_path / "m.gguf", Form()).notes
    assert bool(notes) is (name == "unigram")
    theirs = open_file(tmp_path / "m.gguf")
    assert theirs.token_eos() == ours.eod_id and theirs.n_vocab() == 320
    for text in texts:
        ids = ours.encode(text)
        assert theirs.tokenize(text.encode(), add_bos=True, special=False) == ids, text
        if name != "llama-2":
            assert theirs.detokenize(ids).decode() == text

"""What llama.cpp makes of an exported file: the same ids for a text, the same logits, the same greedy tokens.

`make test-llama-cpp` builds llama.cpp from its Python package's sources, which takes minutes, and runs these.
"""

import json

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf import write
from megaxf.convert.gguf_tokenizer import GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS
from megaxf.convert.interface import Form, Trained
from tests.convert.conftest import TEXT

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
TEXTS = [
    "",
    " ",
    "def f(x):\n    return x + 1\n",
    "\n\n\t x",
    "a  b   c",
    "ünïcode – 日本 😀",
    "it's 12345 they'LL 3.14",
]
TEXTS += ["class A:\n\tpass  # x\r\n\r\n", "<|endoftext|> <s>", "value_12 = [1, '===']", "  trailing  "]


def open_file(path):
    """llama.cpp with its cache in fp32, so that logits can be compared."""
    return llama_cpp.Llama(
        str(path), n_ctx=96, logits_all=True, type_k=0, type_v=0, n_threads=1, n_threads_batch=1, verbose=False
    )


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens(tmp_path, name, make_config, make_weights, load, tokenizer_folder):
    config = make_config(**MODELS[name])
    weights = make_weights(config)
    write(Trained(config, weights, tokenizer_folder, "float32", []), tmp_path / "m.gguf", Form())
    ours, theirs = load(config, weights), open_file(tmp_path / "m.gguf")
    tokens = torch.randint(310, (1, PROMPT), generator=torch.Generator().manual_seed(3))
    theirs.eval(tokens[0].tolist())
    with torch.no_grad():
        logits = ours.logits(ours(tokens))[0].numpy()
        found = np.array(theirs.scores[:PROMPT])
        assert np.abs(logits).max() > 1 and np.abs(found - logits).max() < 1e-4
        while tokens.shape[1] < LENGTH:
            tokens = torch.cat([tokens, ours.logits(ours(tokens))[:, -1].argmax(-1, keepdim=True)], dim=1)
    greedy = []
    for _ in range(LENGTH - PROMPT):
        greedy.append(int(np.argmax(theirs.scores[theirs.n_tokens - 1])))
        theirs.eval(greedy[-1:])
    assert greedy == tokens[0, PROMPT:].tolist()


def byte_level(folder, words, digits=False, ignore_merges=False):
    """A byte-level BPE as the named models have it."""
    steps = [
        pre_tokenizers.Split(Regex(words), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    if words == GPT2_WORDS:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        ([pre_tokenizers.Digits(individual_digits=True)] if digits else []) + steps
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=318, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT + "it's they'll 12345 3.14 a  b"] * 3, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def sentencepiece(folder, kind="bpe", **options):
    if not options:
        train_sentencepiece([TEXT], folder, vocab_size=310 if kind == "bpe" else 290, model_type=kind)
        return
    from sentencepiece import SentencePieceTrainer

    folder.mkdir()
    (folder / "text").write_text(TEXT)
    SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=310, model_type=kind,
        minloglevel=2, **options,
    )  # fmt: skip


AS_LLAMA2 = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
TOKENIZERS = {
    "sentencepiece": sentencepiece,
    "llama-2": lambda folder: sentencepiece(folder, **AS_LLAMA2),
    "unigram": lambda folder: sentencepiece(folder, "unigram"),
    "gpt-2": lambda folder: byte_level(folder, GPT2_WORDS),
    "starcoder": lambda folder: byte_level(folder, GPT2_WORDS, digits=True),
    "llama-3": lambda folder: byte_level(folder, LLAMA3_WORDS, ignore_merges=True),
    "merging": lambda folder: byte_level(folder, LLAMA3_WORDS),
    "qwen2": lambda folder: byte_level(folder, QWEN2_WORDS),
}


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

"""Small tokenizers of the kinds that named models have."""

import json

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.convert.gguf_tokenizer import GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS
from tests.convert.conftest import TEXT

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

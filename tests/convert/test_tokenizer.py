"""The tokenizer of an exported folder gives transformers the same ids, for every kind of text."""

import json
import random

import pytest
import tokenizers
import transformers

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.convert.errors import ConvertError
from tests.convert.conftest import TEXT, export

CORPUS = TEXT + "\n".join(f"    value_{k} = [{k}, '{'=' * (k % 7)}']  {'#' * (k % 5)}" for k in range(300))
FIXED = ["", " ", "\n", "\t\t\r\n", "▁", "a▁b ▁ c", "<0x41><unk><s>", "<0x4g> <0xE2>", "e\u0301 é ﬁ ½"]
FIXED += ["日本語 😀", "\x01\x7f\u200b\ufeff"]
ALPHABETS = ["ab", " \n", "def (x):\n    ", "=-#_", "0123456789.", "äöü日本😀\u0301 ", "abcdefghij \n\t"]


def texts():
    draw = random.Random(5)
    for _ in range(1500):
        unit = "".join(draw.choice(draw.choice(ALPHABETS)) for _ in range(draw.randint(1, 12)))
        yield unit * draw.randint(1, 9)
    for _ in range(300):
        start = draw.randrange(len(CORPUS))
        yield CORPUS[start : start + draw.randint(1, 300)]
    for length in range(1, 120, 3):
        yield " " * length + "x" + " " * (length // 2) + "\n" * (length // 5)
    yield from FIXED


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_gives_the_same_ids(tmp_path, kind):
    train_sentencepiece([*CORPUS.splitlines(keepends=True), CORPUS], tmp_path / "sp", vocab_size=320, model_type=kind)
    ids = export_tokenizer(tmp_path / "sp", tmp_path / "hf", max_length=96)
    ours = load_tokenizer(tmp_path / "sp")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert ids == {"bos_token_id": None, "eos_token_id": ours.eod_id, "pad_token_id": ours.eod_id}
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (None, ours.eod_id, ours.eod_id)
    assert len(theirs) == ours.vocab_size and theirs.model_max_length == 96
    again = load_tokenizer(tmp_path / "hf")
    for text in texts():
        expected = ours.encode(text)
        assert theirs.encode(text, verbose=False) == expected == again.encode(text), repr(text)
        assert theirs.decode(expected) == text
    assert (
        theirs.encode("a<|endoftext|>")[-1] == ours.eod_id
        and theirs.decode([ours.eod_id], skip_special_tokens=True) == ""
    )


def test_models_that_add_a_space_or_fold_spaces(tmp_path):
    """As Llama 2 (a space before each text) and as sentencepiece's defaults (NFKC, runs of spaces folded)."""
    import sentencepiece

    for name, options in {
        "llama": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True},
        "default": {},
    }.items():
        (tmp_path / "text").write_text(CORPUS)
        prefix = tmp_path / name
        prefix.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text"), model_prefix=str(prefix / "tokenizer"), vocab_size=390 if options else 110,
            model_type="bpe", minloglevel=2, **options,
        )  # fmt: skip
        ids = export_tokenizer(prefix, tmp_path / f"{name}-hf", max_length=96)
        assert ids == {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 2}
        ours = load_tokenizer(prefix)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / f"{name}-hf")
        for text in ["def f(x):", " return  x", "a\tb", "ﬁ ½", "x  y   z", "▁a▁", "value_12 = 3"]:
            assert theirs.encode(text) == ours.encode(text), (name, text)
        assert theirs.decode(ours.encode("def f(x):")) == "def f(x):"


def test_a_tokenizer_with_added_tokens_comes_along(tmp_path, make_config, make_weights):
    source = tmp_path / "source"
    source.mkdir()
    vocabulary = {char: index for index, char in enumerate("abcdefghijklmnopqrstuvwxyz ")}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="a"))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|pad|>"])
    tokenizer.add_tokens(["<tool>", "<call>"])
    tokenizer.save(str(source / "tokenizer.json"))
    settings = {
        "eos_token": "<|endoftext|>",
        "pad_token": {"content": "<|pad|>"},
        "auto_map": {"AutoTokenizer": ["x", None]},
    }
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    config = make_config()
    export(config, make_weights(config), source, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "ab <tool>x<call> y"
    assert theirs.encode(text) == load_tokenizer(source).encode(text) == [0, 1, 26, 29, 23, 30, 26, 24]
    assert len(theirs) == load_tokenizer(source).vocab_size == 31
    settings = json.loads((tmp_path / "out/config.json").read_text())
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert (settings["eos_token_id"], settings["pad_token_id"], settings["bos_token_id"]) == (27, 28, None)
    assert generation == {"eos_token_id": 27, "pad_token_id": 28}
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == (27, 28, None)


def test_a_tokenizer_larger_than_the_vocabulary(tmp_path, make_config, make_weights, tokenizer_folder):
    config = make_config(vocab_size=300)
    with pytest.raises(ConvertError, match=r"the tokenizer has 310 tokens and model.vocab_size = 300"):
        export(config, make_weights(config), tokenizer_folder, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

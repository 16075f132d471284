"""The fast path gives the ids of the reference, and a difference never passes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.tokenizer import verified
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from data_pipeline.tokenizer.training import train_tokenizer
from data_pipeline.tokenizer.verified import HARD_TEXTS, VerifiedTokenizer
from tests.data_pipeline.test_tokenizer import bos_tokenizer, source_texts

pytest.importorskip("gigatoken")


@pytest.fixture(scope="module", params=["bpe", "byte-bpe", "marks"])
def folder(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fast") / request.param
    if request.param == "marks":
        return bos_tokenizer(folder)
    train_tokenizer(request.param, [text[:100_000] for text in source_texts()[:20]], folder, vocab_size=1000)
    return folder


def random_text(draw: random.Random) -> str:
    """Any characters, with those that tokenizers treat in a special way more often than the rest."""
    pools = ["  \n\t'.a1", "abcdefghij ", "▁<|endoftext|></s>", "é\u0301ßİ中日한ไ😀\u200d\u0085\u2028\ufeff\xa0"]
    letters = [draw.choice(draw.choice(pools)) for _ in range(draw.randrange(40))]
    letters += [chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])) for _ in range(5)]
    draw.shuffle(letters)
    return "".join(letters)


def test_random_texts_get_the_ids_of_the_reference(folder):
    draw = random.Random(5)
    texts = [random_text(draw) for _ in range(3000)] + source_texts()[30:50]
    reference = load_tokenizer(folder)
    fast = load_tokenizer(folder, backend="gigatoken")
    assert fast.backend.startswith("gigatoken 0.") and reference.backend == reference.version == fast.version
    ids, lengths = fast.encode_documents(texts)
    expected, expected_lengths = reference.encode_documents(texts)
    assert ids.dtype == expected.dtype == np.uint16 and lengths.dtype == np.int64
    wrong = [
        text for text, a, b in zip(texts, split(ids, lengths), split(expected, expected_lengths), strict=True) if a != b
    ]
    # The two have tables of different versions of Unicode: a character that the reference does not know may differ.
    assert len(wrong) <= 3 and not set(wrong) & set(texts[3000:]), wrong


def split(ids, lengths) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_a_fast_tokenizer_is_else_the_reference(folder, tmp_path):
    reference, fast = load_tokenizer(folder), load_tokenizer(folder, backend="auto")
    for name in ("kind", "vocab_size", "eod_id", "eod_token", "bos_id", "digest"):
        assert getattr(fast, name) == getattr(reference, name)
    fast.save(tmp_path / "a")
    assert load_tokenizer(tmp_path / "a").digest == fast.digest
    assert fast.decode(fast.encode(HARD_TEXTS[2])) == HARD_TEXTS[2]
    assert fast.encode_documents([])[0].tolist() == []


def test_special_tokens_in_a_text_are_text(folder):
    fast = load_tokenizer(folder, backend="gigatoken")
    ids, _ = fast.encode_documents([f"a {fast.eod_token} b <s></s>"])
    assert fast.eod_id not in ids and fast.decode(ids.tolist()) == f"a {fast.eod_token} b <s></s>"


def test_a_text_of_many_megabytes_is_encoded_whole(folder):
    """Field reports 24 and 25: no edges inside a document, here with a character of four bytes at each of many."""
    piece = "".join(source_texts())[:99_996]
    text = "".join(piece[: 4096 * k % 90_000] + "😀" for k in range(1, 25))
    reference, fast = load_tokenizer(folder), load_tokenizer(folder, backend="gigatoken")
    ids, lengths = fast.encode_documents(["x", text])
    expected = reference.encode(text)
    assert lengths[1] == len(expected) and ids[lengths[0] :].tolist() == expected
    assert fast.decode(expected) == text and not {fast.eod_id, fast.bos_id} & set(expected)


def spoil(monkeypatch, is_spoiled) -> None:
    """Makes gigatoken wrong: the texts that are named lose their last id."""
    opened = verified.open_gigatoken

    def open_spoiled(tokenizer: Tokenizer):
        encode, name = opened(tokenizer)

        def encode_spoiled(texts):
            ids, lengths = encode([text[:-1] if is_spoiled(text) else text for text in texts])
            return ids, lengths

        return encode_spoiled, name

    monkeypatch.setattr(verified, "open_gigatoken", open_spoiled)


def test_a_difference_before_the_run_is_named_or_avoided(folder, monkeypatch):
    spoil(monkeypatch, lambda text: "wrong" in text)
    sample = ["right", "this is wrong"]
    with pytest.raises(DataError, match=r"gigatoken 0\..* gives other ids than .* for the text 'this is wrong'"):
        load_tokenizer(folder, backend="gigatoken", sample=sample)
    notes: list[str] = []
    tokenizer = load_tokenizer(folder, backend="auto", sample=sample, note=notes.append)
    assert not isinstance(tokenizer, VerifiedTokenizer) and tokenizer.backend == tokenizer.version
    assert len(notes) == 1 and f"tokenizing with {tokenizer.version}, for gigatoken" in notes[0]
    assert isinstance(load_tokenizer(folder, backend="auto", sample=sample[:1]), VerifiedTokenizer)


@pytest.mark.parametrize("text", HARD_TEXTS[1:])
def test_each_hard_text_is_checked_before_the_run(folder, monkeypatch, text):
    spoil(monkeypatch, lambda other: other == text)
    with pytest.raises(DataError, match="gives other ids"):
        load_tokenizer(folder, backend="gigatoken")


def test_a_difference_in_mid_run_is_an_error(folder, monkeypatch):
    monkeypatch.setattr(verified, "CHECK_EVERY", 10)
    spoil(monkeypatch, lambda text: text == "wrong")
    tokenizer = load_tokenizer(folder, backend="auto")
    tokenizer.encode_documents(["right"] * 7)
    tokenizer.encode_documents(["wrong", "right"])
    with pytest.raises(DataError, match="use --tokenizer-backend reference"):
        tokenizer.encode_documents(["right", "wrong", "right"])


def test_without_gigatoken_the_reference_is_used(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    notes: list[str] = []
    assert load_tokenizer(folder, backend="auto", note=notes.append).backend == load_tokenizer(folder).backend
    assert len(notes) == 1 and "gigatoken is not installed; pip install 'megaxf[fast]'" in notes[0]
    with pytest.raises(DataError, match="gigatoken is not installed"):
        load_tokenizer(folder, backend="gigatoken")


def test_what_gigatoken_does_not_know_is_said(tmp_path):
    train_tokenizer("unigram", [text[:20_000] for text in source_texts()[:5]], tmp_path, vocab_size=400)
    with pytest.raises(DataError, match=r"gigatoken does not know this kind of tokenizer .*unigram"):
        load_tokenizer(tmp_path, backend="gigatoken")
    assert load_tokenizer(tmp_path, backend="auto").backend.startswith("sentencepiece")

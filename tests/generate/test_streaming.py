"""Streamed text is the decoded text, in pieces that are whole characters."""

import pytest

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.generate.streaming import TextStream

TEXT = "def f(x):\n    return x + 1  # ok\n" * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_sentencepiece([TEXT], folder, vocab_size=300)
    export_tokenizer(folder, folder / "hf", max_length=64)
    return folder


@pytest.mark.parametrize("kind", ["", "hf"])
@pytest.mark.parametrize("text", [" return x\n", "日本 😀 é!", "a\n\n  b", "\N{REPLACEMENT CHARACTER}x", ""])
def test_pieces_are_whole_characters(folder, kind, text):
    tokenizer = load_tokenizer(folder / kind)
    prompt = tokenizer.encode("def f(x):")
    stream = TextStream(tokenizer.decode, prompt)
    ids = tokenizer.encode(text)
    pieces = [stream.feed(token) for token in ids]
    assert "".join(pieces) + stream.close() == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
        assert stream.close() == "" and "".join(pieces) == text
    if "😀" in text:
        assert len([piece for piece in pieces if not piece]) >= 3  # its first three bytes


def test_bytes_that_never_become_a_character(folder):
    tokenizer = load_tokenizer(folder)
    smile = tokenizer.encode("😀")
    stream = TextStream(tokenizer.decode, [])
    assert [stream.feed(token) for token in smile[:2]] == ["", ""]
    assert set(stream.close()) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_tokenizer_that_strips_the_first_space():
    """As Llama 2: decoding drops a leading space, which must not be lost in the middle of a text."""
    words = ["▁def", "▁f", "(", ")"]

    def decode(ids):
        return "".join(words[k] for k in ids).replace("▁", " ").removeprefix(" ")

    stream = TextStream(decode, [0])
    assert [stream.feed(token) for token in (1, 2, 3)] == [" f", "(", ")"]

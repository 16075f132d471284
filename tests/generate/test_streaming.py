"""Streamed text is the decoded text, in pieces that are whole characters."""

import pytest

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.export import export_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from megaxf.generate.rows import Row, Stop
from megaxf.generate.sampling import row_generator
from megaxf.generate.streaming import TextStream

TEXT = "def f(x):\n    return x + 1  # ok\n" * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_sentencepiece([TEXT], folder, vocab_size=300)
    export_tokenizer(folder, folder / "hf", max_length=64)
    return folder


@pytest.mark.parametrize("kind", ["", "hf"])
@pytest.mark.parametrize("prompt", ["def f(x):", "漢字仮名交"])
@pytest.mark.parametrize("text", [" return x\n", "日本 😀 é!", "a\n\n  b", "\N{REPLACEMENT CHARACTER}x", ""])
def test_pieces_are_whole_characters(folder, kind, prompt, text):
    tokenizer = load_tokenizer(folder / kind)
    stream = TextStream(tokenizer.decode, tokenizer.encode(prompt))
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


def spell(ids):
    """A decoder of which each token is a letter."""
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("text", "stops", "shown", "pieces"),
    [
        ("abcdef", ["cd"], "ab", ["a", "b", "", ""]),
        ("abcdef", ["x"], "abcdef", list("abcdef")),
        ("abccd", ["cd"], "abc", ["a", "b", "", "c", ""]),
        ("abab", ["abc"], "abab", ["", "", "ab", ""]),
        ("aab", ["ab"], "a", ["", "a", ""]),
        ("abcd", ["cd", "bc"], "a", ["a", "", ""]),
        ("abcde", ["b", "bcd"], "a", ["a", ""]),
        ("a", ["a"], "", [""]),
    ],
)
def test_nothing_is_shown_of_a_stop_string(text, stops, shown, pieces):
    stream, found = TextStream(spell, [], stops), []
    for token in map(ord, text):
        found.append(stream.feed(token))
        if stream.stopped:
            break
    found.append(stream.close())
    assert "".join(found) == shown and found[:-1] == pieces
    assert stream.stopped == any(stop in text for stop in stops)


def test_a_stop_string_within_one_token_and_not_in_the_prompt():
    words = ["one, ", "two", "; three", " four"]
    stream = TextStream(lambda ids: "".join(words[k] for k in ids), [0, 2], ["e, ", "; t", "re"])
    assert [stream.feed(1), stream.feed(2), stream.stopped, stream.close()] == ["two", "", True, ""]


@pytest.mark.parametrize("kind", ["", "hf"])
@pytest.mark.parametrize("stop", ["é!", "本 ", "!", "😀"])
def test_stop_strings_of_a_real_tokenizer(folder, kind, stop):
    """Characters of several tokens, with the beginning of a text that may go on."""
    tokenizer = load_tokenizer(folder / kind)
    text = " return 日本 😀 é! x"
    stream, shown = TextStream(tokenizer.decode, tokenizer.encode("def f(x):"), [stop]), ""
    for token in tokenizer.encode(text):
        shown += stream.feed(token)
        assert text.startswith(shown)
        if stream.stopped:
            break
    assert stream.stopped and shown == text[: text.index(stop)] == shown + stream.close()


def test_a_stop_string_that_waited_for_the_rest_of_a_character_is_why_the_text_ended():
    """The last token ends it with the first byte of a character that never comes."""
    parts = {0: b"x", 1: b"a", 2: b"END\xc3"}
    stream = TextStream(lambda ids: b"".join(map(parts.get, ids)).decode(errors="replace"), [0], ["END"])
    row = Row(0, [0], 2, "length", Stop(strings=["END"]), row_generator(0, 0), stream, None)
    row.accept(1, None)
    row.accept(2, None)
    assert (row.result(False, False).text, row.reason) == ("a", "stop")

"""Tokenizers lose nothing, add nothing, and take text only for text."""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from data_pipeline.tokenizer.training import EOD_TOKEN, train_tokenizer
from tests.data_pipeline.kit import EOD, byte_tokenizer, files_of, word_tokenizer

HARD_TEXTS = [
    "",
    " one space before",
    "   three, and two after  ",
    "\ttab\t\tand\ttabs\n",
    "line\nline\n\n\nline\n",
    "dos\r\nline\r\n",
    "def f(x):\n    if x:\n        return 1\n",
    "café 中文 日本語 😀👩‍👩‍👧 \u2028\u2029\u0085\x0b\x1c",
    "nul \0 and ▁ and ▅ and \ufeff and \u00a0",
    "<|endoftext|> </s> <unk> <0x0A> <s>",
    "▁▁ ▁",
]


def source_texts() -> list[str]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("[a-d]*.py"))]


def assert_bulk_equals_one_by_one(tokenizer: Tokenizer, texts: list[str]):
    ids, lengths = tokenizer.encode_documents(texts)
    expected = [tokenizer.encode(text) for text in texts]
    assert ids.dtype == ("uint16" if tokenizer.vocab_size <= 65_536 else "uint32")
    assert lengths.dtype == "int64" and lengths.tolist() == [len(one) for one in expected]
    assert ids.tolist() == [number for one in expected for number in one]


@pytest.fixture(scope="module", params=["bpe", "unigram", "byte-bpe"])
def trained(request, tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    size = 100_000 if request.param == "unigram" else 3_000_000
    train_tokenizer(request.param, [text[:size] for text in source_texts()[:20]], folder, vocab_size=1000)
    return load_tokenizer(folder)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_trained_tokenizer_loses_nothing(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.eod_id not in ids
    assert trained.decode([*ids, trained.eod_id]) == text
    assert trained.decode([*ids, trained.vocab_size, trained.vocab_size + 9]) == text, "rows that fill a table up"


def test_a_trained_tokenizer_knows_itself(trained):
    assert (trained.vocab_size, trained.eod_token, trained.bos_id) == (1000, EOD_TOKEN, None)
    assert trained.backend == trained.version and trained.version.startswith(("sentencepiece 0", "tokenizers 0"))
    assert_bulk_equals_one_by_one(trained, HARD_TEXTS)
    assert_bulk_equals_one_by_one(trained, [])


def test_indentation_is_cheap(trained):
    for depth in (4, 8, 12):
        ids = trained.encode("pass\n" + " " * depth + "pass")
        assert len(ids) <= len(trained.encode("pass")) * 2 + 2


def test_compression_of_code(trained):
    text = source_texts()[25]
    assert len(text.encode()) / len(trained.encode(text)) > 2


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_training_is_deterministic(tmp_path, kind):
    texts = source_texts()[:10]
    for name in ("a", "b"):
        train_tokenizer(kind, texts, tmp_path / name, vocab_size=600)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


@pytest.mark.parametrize(
    ("kind", "fixed"), [("bpe", "258 fixed tokens"), ("unigram", "258 fixed"), ("byte-bpe", "all bytes")]
)
def test_too_little_text_names_the_largest_vocabulary(tmp_path, kind, fixed):
    texts = ["some few words, not many of them\n" * 3]
    with pytest.raises(
        DataError, match=r"--vocab-size 5000 is more than this text can fill; use (\d+) or less"
    ) as caught:
        train_tokenizer(kind, texts, tmp_path / "a", vocab_size=5000)
    largest = int(str(caught.value).split("use ")[1].split()[0])
    train_tokenizer(kind, texts, tmp_path / "b", vocab_size=largest)
    assert load_tokenizer(tmp_path / "b").vocab_size == largest
    with pytest.raises(DataError, match=f"--vocab-size 100 cannot hold .*{fixed}"):
        train_tokenizer(kind, texts, tmp_path / "c", vocab_size=100)


def test_saved_files_give_the_same_tokenizer(trained, tmp_path):
    trained.save(tmp_path / "a")
    again = load_tokenizer(tmp_path / "a")
    assert again.digest == trained.digest
    assert again.encode(HARD_TEXTS[6]) == trained.encode(HARD_TEXTS[6])


@pytest.mark.long
def test_time_grows_with_the_length_and_not_its_square(trained):
    text = "".join(source_texts())[:400_000] + "😀"

    def seconds(copies: int) -> float:
        start = time.process_time()
        trained.encode(text * copies)
        return time.process_time() - start

    seconds(1)
    assert seconds(8) / seconds(2) < 9


def bos_tokenizer(folder: Path) -> Path:
    """Byte-level BPE that puts BOS and EOS around every text of its own accord."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<fill>", special=False)])
    marks = [("<s>", 256), ("</s>", 257)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_hugging_face_tokenizer_adds_nothing(tmp_path, text):
    tokenizer = load_tokenizer(bos_tokenizer(tmp_path / "a"))
    ids = tokenizer.encode(text)
    assert not {256, 257} & set(ids) and len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert_bulk_equals_one_by_one(tokenizer, [text, text])
    assert (tokenizer.eod_id, tokenizer.eod_token, tokenizer.bos_id, tokenizer.vocab_size) == (257, "</s>", 256, 259)


def test_the_byte_tokenizer_counts_bytes(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "a"))
    for text in HARD_TEXTS:
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.eod_id, tokenizer.bos_id) == (257, EOD, None)


def test_added_tokens_count_in_the_vocabulary(tmp_path):
    added = [f"<extra{i}>" for i in range(9)] + ["<|endoftext|>"]
    tokenizer = load_tokenizer(word_tokenizer(tmp_path / "a", 65_530, added))
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (65_540, 65_539)
    assert tokenizer.encode("t5 <extra8> t65529") == [5, 65_538, 65_529]
    assert_bulk_equals_one_by_one(tokenizer, ["t5 <extra8> t65529", "t1"])


def test_the_end_of_document_token_can_be_named_and_stays_named(tmp_path):
    folder = byte_tokenizer(tmp_path / "a", ["<stop>", "<go>"])
    with pytest.raises(DataError, match=r"none of the usual end-of-document tokens .* --eod-token"):
        load_tokenizer(folder)
    with pytest.raises(DataError, match="has no token '<halt>'"):
        load_tokenizer(folder, "<halt>")
    named = load_tokenizer(folder, "<go>")
    assert named.eod_id == 257
    named.save(tmp_path / "b")
    assert load_tokenizer(tmp_path / "b").eod_id == 257
    assert named.encode("<go>") == list(b"<go>")


def test_the_end_of_document_token_of_a_hugging_face_folder_is_read(tmp_path):
    folder = byte_tokenizer(tmp_path / "a", ["<|endoftext|>", "<|im_end|>"])
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    assert load_tokenizer(folder).eod_id == 257


def test_what_is_no_tokenizer_is_named(tmp_path, trained):
    with pytest.raises(DataError, match="does not exist; give a sentencepiece"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"found neither tokenizer\.json nor \*\.model"):
        load_tokenizer(tmp_path)
    for name, said in (("a.model", "is not a sentencepiece model"), ("a.json", "is not a Hugging Face tokenizer")):
        (tmp_path / name).write_text("{}")
        with pytest.raises(DataError, match=said):
            load_tokenizer(tmp_path / name)
    trained.save(tmp_path / "b")
    with pytest.raises(DataError, match=r"has no (control )?token 'word'"):
        load_tokenizer(tmp_path / "b", "word")


@pytest.mark.parametrize("name", ["tokenizer.json", "a.model"])
def test_a_file_that_may_not_be_read_is_not_taken_for_another_kind(tmp_path, monkeypatch, name):
    (tmp_path / name).write_bytes(b"")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=rf"{name}: cannot be read: Permission denied$"):
        load_tokenizer(tmp_path / name)

"""Text tokenised while training: the tokens of prepared data, from any position, for any ranks."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.loader.ring import Request, Ring
from data_pipeline.loader.share import DataShare
from data_pipeline.loader.torch import TokenIterableDataset
from data_pipeline.online import documents
from data_pipeline.online.batches import OnlineBatches, check_online_vocabulary
from data_pipeline.rows.reader import RowOptions, RowReader
from data_pipeline.sources import huggingface
from data_pipeline.sources.base import ReadOptions
from data_pipeline.tokenizer.base import write_settings
from tests.data_pipeline.kit import EOD, build, byte_tokenizer, write_jsonl

LENGTH = 16


@pytest.fixture
def texts() -> list[str]:
    """Lengths from nothing to several rows, some beyond ASCII; they begin with their number."""
    random = np.random.default_rng(4)
    words = ["a", "be", "été", "\n", "日本", " "]
    found = [f"{n} " + "".join(random.choice(words, size)) for n, size in enumerate(random.integers(0, 40, 300))]
    return [*found[:7], "", " \n", *found[7:]]


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    return byte_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def small(monkeypatch):
    """Blocks of some documents, and several parts that are shuffled by themselves."""
    monkeypatch.setattr(documents, "_CHARACTERS", 300)
    monkeypatch.setattr("data_pipeline.online.batches._UNIT_BYTES", 3000)
    monkeypatch.setattr(huggingface, "_STREAM_ROWS", 40)


def folder_of(tmp_path: Path, texts: list[str]) -> str:
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def opened(source: str, tokenizer: Path, shuffle: bool = False, **options) -> OnlineBatches:
    options = {"isolate_documents": True, **options}
    return OnlineBatches([source], tokenizer, LENGTH, 1, shuffle=shuffle, backend="reference", **options)


def same(ours, theirs) -> None:
    for name in ("tokens", "labels", "positions", "document_ids", "bounds"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("kind", ["jsonl", "datasets"])
@pytest.mark.parametrize("isolate", [False, True])
def test_it_gives_what_prepared_data_give(tmp_path, texts, tokenizer, small, kind, isolate):
    """The rows of the first epoch of concat packing, token for token."""
    source = write_jsonl(tmp_path / "a.jsonl", texts) if kind == "jsonl" else folder_of(tmp_path, texts)
    build(source, output=tmp_path / "shards", tokenizer=tokenizer)
    prepared = open_dataset(tmp_path / "shards", "train")
    reader = RowReader(prepared, RowOptions(LENGTH, isolate_documents=isolate))
    online = opened(source, tokenizer, isolate_documents=isolate)
    done = 0
    for count in [1, 8, 50, reader.rows() - 59]:
        same(online.rows(done, count), reader.read(0, np.arange(done, done + count)))
        done += count
    # Then the documents come again, and behind the last EOD the first document.
    left = prepared.read(reader.rows() * LENGTH, prepared.tokens)
    again = np.append(left, prepared.read(0, LENGTH))[:LENGTH]
    assert online.rows(done, 1).tokens[0].tolist() == again.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_stops_and_changes_of_ranks_read_the_one_sequence(tmp_path, texts, tokenizer, small, shuffle):
    source = folder_of(tmp_path, texts)
    whole = opened(source, tokenizer, shuffle).rows(0, 1200)
    state, parts, sample = None, [], 0
    for ranks, steps in [(1, 7), (3, 20), (2, 40), (6, 33)]:
        found = []
        for rank in range(ranks):
            loader, share = opened(source, tokenizer, shuffle), DataShare(rank, ranks)
            if state:
                loader.go_on(state)
            wanted = [Request(*share.block(sample + step * 12, 12), LENGTH) for step in range(steps)]
            with Ring(loader, wanted, depth=5) as ring:
                found.append([])
                for _, batch in ring:
                    found[-1].append(batch.tokens.copy())
                    ring.release()
        parts += [found[rank][step] for step in range(steps) for rank in range(ranks)]
        sample += 12 * steps
        state = json.loads(json.dumps(loader.state(sample)))
        assert len(json.dumps(state)) < 700
    assert np.array_equal(np.concatenate(parts), whole.tokens)


def test_a_state_spares_the_text_before_it(tmp_path, texts, tokenizer, small, monkeypatch):
    """And gives the same rows as going there from the beginning; so does going back."""
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    first = opened(source, tokenizer, shuffle=True)
    expected = first.rows(900, 5)
    state = first.state(900)
    resumed = opened(source, tokenizer, shuffle=True)
    resumed.go_on(state)
    tokenised = []
    encode = resumed.tokenizer.encode_documents
    monkeypatch.setattr(resumed.tokenizer, "encode_documents", lambda texts: tokenised.append(texts) or encode(texts))
    same(resumed.rows(900, 5), expected)
    assert len(tokenised) <= 2
    same(resumed.rows(3, 5), opened(source, tokenizer, shuffle=True).rows(3, 5))
    same(resumed.rows(900, 5), expected)


def test_a_shuffled_epoch_has_every_document_once(tmp_path, tokenizer, small):
    """Units come in another order in each epoch, and so do the documents of each: 150 lines of 20 bytes."""
    texts = [f"{number:06d}." for number in range(2000)]
    loader = opened(write_jsonl(tmp_path / "a.jsonl", texts), tokenizer, shuffle=True)
    tokens = loader.rows(0, 2 * len(texts) * 8 // LENGTH).tokens.reshape(2, len(texts), 8)
    numbers = [[int(bytes(document[:6].tolist())) for document in epoch] for epoch in tokens]
    assert (tokens[:, :, -1] == EOD).all()
    assert [sorted(epoch) for epoch in numbers] == [list(range(2000))] * 2
    units = [list(dict.fromkeys(number // 150 for number in epoch)) for epoch in numbers]
    assert len({tuple(order) for order in [*units, range(14)]}) == 3
    inner = [tuple(n % 150 for n in epoch if n // 150 == unit) for epoch in numbers for unit in (0, 1)]
    assert len(set(inner) | {tuple(range(150))}) == 5


def test_streamed_sets_resume_in_the_middle_of_a_file(tmp_path, texts, tokenizer, small, monkeypatch):
    """Three files of a set that `datasets` streams, as from the hub."""
    (tmp_path / "hub").mkdir()
    files = [write_jsonl(tmp_path / f"hub/{number}.jsonl", texts[number::3]) for number in range(3)]
    options = ReadOptions(streaming=True)
    first = opened(str(tmp_path / "hub"), tokenizer, options=options)
    whole = first.rows(0, 700)
    build(*files, output=tmp_path / "shards", tokenizer=tokenizer)
    prepared = open_dataset(tmp_path / "shards", "train")
    assert np.array_equal(whole.tokens.ravel(), prepared.read(0, 700 * LENGTH))
    resumed = opened(str(tmp_path / "hub"), tokenizer, options=options)
    resumed.go_on(first.state(500))
    assert np.array_equal(resumed.rows(500, 200).tokens, whole.tokens[500:])
    assert any("from its beginning" in sentence for sentence in resumed.limits())


def test_the_iterable_dataset_takes_it_too(tmp_path, texts, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    dataset = TokenIterableDataset(opened(source, tokenizer), 1, 2, 8)
    list(islice(dataset, 2))
    resumed = TokenIterableDataset(opened(source, tokenizer), 0, 4, 8)
    resumed.load_state_dict(dataset.state_dict())
    assert np.array_equal(next(iter(resumed))["tokens"], opened(source, tokenizer).rows(16, 2).tokens)


def test_other_data_change_the_fingerprint_and_a_state_of_them_gives_no_place(tmp_path, texts, tokenizer):
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    base = opened(source, tokenizer)
    base.rows(400, 2)
    assert base.fingerprint == opened(source, tokenizer).fingerprint
    other = opened(write_jsonl(tmp_path / "b.jsonl", texts[3:]), tokenizer)
    changed = [other, opened(source, tokenizer, True), opened(source, byte_tokenizer(tmp_path / "x", ["</s>"]))]
    assert len({one.fingerprint for one in [base, *changed]}) == 4
    other.go_on(base.state(400))
    assert other.state(400)["online"] == [0, 0, 0, 0]


def test_how_it_is_read_changes_the_fingerprint(tmp_path, texts):
    """The text of another field is other data, and so are documents that end otherwise."""
    source, both = write_jsonl(tmp_path / "a.jsonl", texts), byte_tokenizer(tmp_path / "both", ["</s>", "<pad>"])
    read = [{}, {"text_field": "title"}, {"min_characters": 9}, {"max_characters": 9}]
    found = [opened(source, both, options=ReadOptions(**one)).fingerprint for one in read]
    assert found[0] == opened(source, both).fingerprint
    write_settings(both, "<pad>")
    assert len({*found, opened(source, both).fingerprint}) == len(read) + 1


def test_faults_are_named(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=r"a\.jsonl: .*; prepare the data with --on-error skip"):
        opened(str(tmp_path / "a.jsonl"), tokenizer).rows(0, 1)
    with pytest.raises(DataError, match=r"b\.jsonl: holds no text"):
        opened(write_jsonl(tmp_path / "b.jsonl", ["", " "]), tokenizer).rows(0, 1)
    source = write_jsonl(tmp_path / "c.jsonl", ["good", "an A in it"])
    write_settings(byte_tokenizer(tmp_path / "ends with A"), "<0x41>")
    with pytest.raises(DataError, match=r"c\.jsonl: a text encodes to <0x41>, the end-of-document token"):
        opened(source, tmp_path / "ends with A").rows(0, 1)
    with pytest.raises(DataError, match=r"vocabulary of 257, but model\.vocab_size = 256"):
        check_online_vocabulary(opened(source, tokenizer), 256)
    check_online_vocabulary(opened(source, tokenizer), 257)

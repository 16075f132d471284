"""Batches as a pure function of (seed, position)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.writer import write_documents
from data_pipeline.loader.batches import Batches, check_vocabulary
from data_pipeline.rows.batch import IGNORE
from tests.data_pipeline.kit import EOD


def write(folder: Path, documents: list[list[int]], validation: list[list[int]] = (), **options) -> Path:  # type: ignore[assignment]
    splits = {"train": documents} | ({"validation": validation} if validation else {})
    write_documents(folder, splits, vocab_size=options.pop("vocab_size", 257), eod_id=EOD, **options)
    return folder


def labelled(folder: Path, rows: int, first: int = 0, sequence_length: int = 4) -> Path:
    """One document, whose row k begins with token first + k."""
    tokens = [value for k in range(rows) for value in [first + k] * sequence_length]
    return write(folder, [tokens])


def batches(*folders: Path, sequence_length: int = 4, seed: int = 1, split: str = "train", **options) -> Batches:
    weights = options.pop("weights", [1.0] * len(folders))
    sources = {folder.name: (folder, weight) for folder, weight in zip(folders, weights, strict=True)}
    return Batches(sources, split, sequence_length, seed, **options)


def ids(loader: Batches, first: int, count: int) -> list[int]:
    return loader.rows(first, count).tokens[:, 0].tolist()


def test_rows_share_one_token_and_miss_no_pair(tmp_path):
    folder = write(tmp_path / "a", [list(range(24))], shard_tokens=10)
    loader = batches(folder, sequence_length=6)
    assert loader.row_counts == [4]
    batch = loader.rows(0, 4)
    rows = sorted(zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True))
    last = [*range(19, 24), EOD]
    assert rows == [
        ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]),
        ([6, 7, 8, 9, 10, 11], [7, 8, 9, 10, 11, 12]),
        ([12, 13, 14, 15, 16, 17], [13, 14, 15, 16, 17, 18]),
        ([18, 19, 20, 21, 22, 23], last),
    ]
    assert batch.positions is None and batch.document_ids is None
    assert batch.tokens.dtype == batch.labels.dtype == np.int64


def test_rows_cross_shards(tmp_path):
    documents = [[k] * 5 for k in range(30)]
    one, many = write(tmp_path / "x/a", documents), write(tmp_path / "y/a", documents, shard_tokens=6)
    for isolate in (False, True):
        a, b = (batches(f, sequence_length=13, isolate_documents=isolate).rows(0, 20) for f in (one, many))
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True) if x is not None)


def test_each_epoch_is_another_permutation(tmp_path):
    folder = labelled(tmp_path / "a", 50)
    order = np.array(ids(batches(folder), 0, 150)).reshape(3, 50)
    assert np.array_equal(np.sort(order), [np.arange(50)] * 3)
    assert len({tuple(epoch) for epoch in order}) == 3
    assert ids(batches(folder), 0, 150) == order.ravel().tolist()
    assert ids(batches(folder, seed=2), 0, 150) != order.ravel().tolist()


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 10])
def test_resuming_anywhere_gives_the_same_batches(tmp_path, stop):
    folder = labelled(tmp_path / "a", 40)
    straight = [ids(batches(folder), step * 8, 8) for step in range(12)]
    before = [ids(batches(folder), step * 8, 8) for step in range(stop)]
    assert before + [ids(batches(folder), step * 8, 8) for step in range(stop, 12)] == straight


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
def test_ranks_share_the_batch_without_loss_or_repeat(tmp_path, ranks):
    loader = batches(labelled(tmp_path / "a", 101))
    part = 12 // ranks
    firsts = [step * 12 + rank * part for step in range(20) for rank in range(ranks)]
    assert [row for first in firsts for row in ids(loader, first, part)] == ids(loader, 0, 240)
    assert sorted(ids(loader, 0, 101)) == list(range(101))


def test_blended_rows_come_from_their_sources_in_order(tmp_path):
    a, b = labelled(tmp_path / "a", 5), labelled(tmp_path / "b", 200, first=50)
    loader = batches(a, b, weights=[0.2, 0.8])
    samples, tokens = loader.samples(0, 100), np.array(ids(loader, 0, 100))
    assert np.bincount(samples.source).tolist() == [20, 80]
    assert np.array_equal(tokens, samples.row + np.where(samples.source == 0, 0, 50))
    assert np.array_equal(np.bincount(tokens[samples.source == 0]), [4] * 5)
    assert len(set(tokens[samples.source == 1])) == 80
    assert samples.epoch[samples.source == 0].tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert ids(loader, 37, 11) == tokens[37:48].tolist()


def test_the_use_of_each_source_adds_up(tmp_path):
    short = write(tmp_path / "short", [[1] * 9] * 40)
    long = write(tmp_path / "long", [[2] * 199] * 4)
    loader = batches(short, long, sequence_length=20, weights=[0.5, 0.5])
    use = {one.name: one for one in loader.use(100)}
    assert (use["short"].rows, use["long"].rows) == (50, 50)
    assert sum(one.tokens for one in use.values()) == 100 * 20
    assert use["short"].epochs == 50 / 19 and use["long"].epochs == 50 / 39


def test_the_order_of_the_names_in_the_config_does_not_matter(tmp_path):
    a, b = labelled(tmp_path / "a", 20), labelled(tmp_path / "b", 20, first=100)
    assert ids(batches(a, b), 0, 40) == ids(batches(b, a), 0, 40)


def test_whatever_decides_about_a_batch_changes_the_fingerprint(tmp_path):
    a, b = labelled(tmp_path / "a", 20), labelled(tmp_path / "b", 30, first=100)
    other = write(tmp_path / "other/a", [[9] * 80])
    base = batches(a, b)
    assert batches(a, b).fingerprint == base.fingerprint
    changed = [
        batches(a, b, seed=2),
        batches(a, b, sequence_length=5),
        batches(a, b, weights=[1.0, 2.0]),
        batches(a, b, isolate_documents=True),
        batches(other, b),
        batches(a),
    ]
    assert len({one.fingerprint for one in [base, *changed]}) == 7
    for one in changed[:3]:
        assert not np.array_equal(one.rows(0, 20).tokens[:, :4], base.rows(0, 20).tokens)


def test_isolated_documents(tmp_path):
    """Lengths with EOD 16, 16, 32, 8, 8 and S = 16: edges that fall on row edges make no empty segment."""
    lengths = [16, 16, 32, 8, 8]
    folder = write(tmp_path / "a", [[k + 1] * (length - 1) for k, length in enumerate(lengths)])
    loader = batches(folder, sequence_length=16, isolate_documents=True)
    assert loader.row_counts == [4]
    order = np.argsort(loader.samples(0, 4).row)
    batch = loader.rows(0, 4)
    assert batch.positions is not None and batch.document_ids is not None
    # Rows hold documents 0, 1, 2, 2; every target but those beyond a document's end counts.
    assert (batch.labels != IGNORE).sum(axis=1)[order].tolist() == [15, 15, 16, 15]
    assert batch.positions.tolist() == [list(range(16))] * 4
    assert not batch.document_ids.any()

    shifted = batches(folder, sequence_length=12, isolate_documents=True)
    batch = shifted.rows(0, 6)
    row = shifted.samples(0, 6).row.tolist().index(5)
    assert batch.tokens[row].tolist() == [3] * 3 + [EOD] + [4] * 7 + [EOD]
    assert batch.labels[row, :5].tolist() == [3, 3, EOD, IGNORE, 4]
    assert batch.positions is not None and batch.document_ids is not None
    # Document 2 began before the row: its positions begin at 0 with the row.
    assert batch.positions[row].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]
    assert batch.document_ids[row].tolist() == [0] * 4 + [1] * 8


def test_reading_a_row_leaves_no_trace_in_the_next(tmp_path):
    folder = write(tmp_path / "a", [[k] * 6 for k in range(1, 30)])
    used = batches(folder, sequence_length=10, isolate_documents=True)
    first = used.rows(0, 3)
    first.labels[:] = 0
    first.tokens[:] = 0
    again, fresh = used.rows(0, 3), batches(folder, sequence_length=10, isolate_documents=True).rows(0, 3)
    assert all(np.array_equal(a, b) for a, b in zip(again, fresh, strict=True))


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("sequence_length", [1, 3, 4, 7, 64])
def test_evaluation_counts_every_token_once(tmp_path, sequence_length, isolate):
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]
    folder = write(tmp_path / "a", [[1] * 99], validation=documents)
    loader = batches(folder, split="validation", sequence_length=sequence_length, isolate_documents=isolate)
    rows = loader.evaluation_rows("a")
    labels = np.concatenate([batch.labels.ravel() for batch in rows])
    whole = [token for document in documents for token in [*document, EOD]]
    firsts = {0, 4, 7, 12} if isolate else {0}
    assert labels[labels != IGNORE].tolist() == [token for k, token in enumerate(whole) if k not in firsts]
    assert len(rows) == -(-13 // sequence_length)
    joined = rows.rows(0, 100)
    assert np.array_equal(joined.labels.ravel(), labels)
    assert joined.tokens.shape == (len(rows), sequence_length)
    assert np.array_equal(rows.rows(1, 2).tokens, joined.tokens[1:3])


def test_the_filling_of_the_last_row_is_a_document_of_its_own(tmp_path):
    folder = write(tmp_path / "a", [[1] * 9], validation=[[1, 2], [3]])
    [batch] = batches(folder, split="validation", sequence_length=8, isolate_documents=True).evaluation_rows("a")
    assert batch.tokens.tolist() == [[1, 2, EOD, 3, EOD, EOD, EOD, EOD]]
    assert batch.labels.tolist() == [[2, EOD, IGNORE, EOD, *[IGNORE] * 4]]
    assert batch.document_ids is not None and batch.document_ids.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]


def test_a_split_below_one_row_is_an_error_in_training_only(tmp_path):
    folder = write(tmp_path / "a", [[1] * 9], validation=[[1, 2]])
    with pytest.raises(DataError, match="the train split has 10 tokens, and one row of sequence_length 10 needs 11"):
        batches(folder, sequence_length=10)
    loader = batches(folder, split="validation", sequence_length=10)
    assert len(loader.evaluation_rows("a")) == 1
    with pytest.raises(DataError, match="the validation split has 3 tokens"):
        loader.rows(0, 1)


def test_a_model_with_too_small_a_vocabulary_is_refused(tmp_path):
    folder = write(tmp_path / "a", [[79_999, 5]] * 4, vocab_size=80_001)
    loader = batches(folder)
    with pytest.raises(DataError, match=r"vocabulary of 80001 \(largest id used: 79999\), but model.vocab_size = 257"):
        check_vocabulary(loader, 257)
    check_vocabulary(loader, 80_001)
    assert (loader.vocab_size, loader.eod_id) == (80_001, EOD)


def test_sources_of_two_tokenizers_are_refused(tmp_path):
    a = write(tmp_path / "a", [[1] * 9])
    write_documents(tmp_path / "b", {"train": [[1] * 9]}, vocab_size=257, eod_id=2)
    with pytest.raises(DataError, match=r"b: has eod_id 2, but .*a has 256; prepare both with one tokenizer"):
        batches(a, tmp_path / "b")

"""Rows in which no document is cut that fits, and the index that keeps them."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.writer import write_documents
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.settings import SourceOptions
from data_pipeline.rows.batch import IGNORE
from data_pipeline.rows.best_fit import best_fit, pack_best_fit
from data_pipeline.rows.bos_fit import pack_bos_fit
from data_pipeline.rows.boundaries import cu_seqlens
from data_pipeline.rows.reader import RowOptions, RowReader
from launch.megaxf import main
from tests.data_pipeline.kit import EOD


def textbook(lengths: list[int], capacity: int) -> list[int]:
    """Best-fit decreasing, one item at a time: the room left in each bin."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, number) for number, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting)[1]] -= length
        else:
            rooms.append(capacity - length)
    return rooms


def packed_rooms(lengths: np.ndarray, capacity: int) -> list[int]:
    rows, count = best_fit(lengths, capacity)
    rooms = capacity - np.bincount(rows, lengths, count).astype(int)
    assert rooms.min(initial=0) >= 0
    return sorted(rooms.tolist())


def web_lengths(documents: int, seed: int, mean: float = 885.0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(np.log(mean) - 0.6, 1.1, documents)
    return np.maximum(1, drawn).astype(np.int64)


@pytest.mark.parametrize("seed", range(12))
def test_packing_is_best_fit_decreasing(seed):
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 200))
    lengths = rng.integers(1, capacity + 1, int(rng.integers(0, 700)))
    if seed % 2:
        lengths = np.minimum(capacity, web_lengths(600, seed, capacity / 3))
    assert packed_rooms(lengths, capacity) == sorted(textbook(lengths.tolist(), capacity))


def test_packing_is_best_fit_decreasing_in_many_small_cases():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        capacity = int(rng.integers(1, 60))
        lengths = rng.integers(1, rng.integers(1, capacity + 1) + 1, int(rng.integers(0, 120)))
        assert packed_rooms(lengths, capacity) == sorted(textbook(lengths.tolist(), capacity)), (capacity, lengths)


@pytest.mark.parametrize("seed", range(4))
def test_padding_is_below_a_tenth_of_a_percent(seed):
    packed = pack_best_fit(web_lengths(4000, seed), 2048)
    rows = len(packed.firsts) - 1
    assert 1 - packed.lengths.sum() / (rows * 2049) <= 0.001


def test_the_last_token_of_a_cut_document_needs_no_row_of_its_own():
    documents = np.array([33, 65, 1])
    assert pack_best_fit(documents, 32).lengths.tolist() == [33, 33, 33, 1]
    assert documents.tolist() == [33, 65, 1]


def labelled(folder: Path, lengths: list[int], shard_tokens: int = 400) -> TokenDataset:
    """Document k, EOD included, has lengths[k] tokens: 1000 k + its place, so that a token tells where it is from."""
    documents = [[1000 * (k + 1) + place for place in range(length - 1)] for k, length in enumerate(lengths)]
    write_documents(folder, {"train": documents}, vocab_size=2_000_000, eod_id=EOD, shard_tokens=shard_tokens)
    return open_dataset(folder, "train")


def documents_in(batch) -> list[list[int]]:
    """Each segment of a batch that is no padding: its tokens, with the last of them that is only a label."""
    found = []
    for row in range(len(batch.tokens)):
        for number in range(batch.document_ids[row].max() + 1):
            inside = batch.document_ids[row] == number
            tokens, labels = batch.tokens[row, inside], batch.labels[row, inside]
            counted = labels[labels != IGNORE].tolist()
            if counted:
                # One more where the row's last label is the piece's last token.
                assert counted == [*tokens[1:].tolist(), *counted[len(tokens) - 1 :]]
                found.append([int(tokens[0]), *counted])
            else:
                assert (tokens == EOD).all()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_document_is_in_the_rows_once(tmp_path, seed):
    rng = np.random.default_rng(seed)
    lengths = [*rng.integers(2, 40, 60).tolist(), 33, 34, 65, 97, 130]
    whole = labelled(tmp_path, lengths)
    reader = RowReader(whole, RowOptions(32, "best_fit", isolate_documents=True))
    batch = reader.read(3, np.arange(reader.rows()))
    pieces = documents_in(batch)
    expected: Counter[tuple[int, ...]] = Counter()
    for index in range(whole.documents):
        document = whole.document(index).tolist()
        if len(document) <= 33:
            expected[tuple(document)] += 1
        else:
            parts = [document[start : start + 33] for start in range(0, len(document) - 1, 32)]
            expected.update(map(tuple, parts))
    assert Counter(map(tuple, pieces)) == expected
    bounds = cu_seqlens(batch)
    assert (np.diff(bounds) > 0).all() and bounds[-1] == batch.tokens.size
    assert sum(reader.rows_per_shard) == reader.rows() and len(whole.shards) > 2


def test_padding_is_a_document_whose_labels_do_not_count(tmp_path):
    whole = labelled(tmp_path, [4, 3])
    for isolate in (False, True):
        batch = RowReader(whole, RowOptions(9, "best_fit", isolate)).read(0, np.array([0]))
        assert batch.tokens.tolist() == [[1000, 1001, 1002, EOD, 2000, 2001, EOD, EOD, EOD]]
        seam = IGNORE if isolate else 2000
        assert batch.labels.tolist() == [[1001, 1002, EOD, seam, 2001, EOD, IGNORE, IGNORE, IGNORE]]
    assert batch.document_ids is not None and batch.document_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 2, 2]]
    assert batch.positions is not None and batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0, 1]]
    assert cu_seqlens(batch).tolist() == [0, 4, 7, 9]


def test_bos_fit_holds_the_beginning_of_every_document(tmp_path):
    lengths = [5, 60, 20, 33, 34, 2, 12, 41, 7]
    whole = labelled(tmp_path, lengths, shard_tokens=10_000)
    reader = RowReader(whole, RowOptions(32, "bos_fit", isolate_documents=True))
    batch = reader.read(0, np.arange(reader.rows()))
    pieces = documents_in(batch)
    expected = [whole.document(index).tolist()[:33] for index in range(whole.documents)]
    assert sorted(pieces) == sorted(expected)
    assert reader._rows.summary.thrown_away == [27 + 1 + 8]  # type: ignore[attr-defined]
    assert pack_bos_fit(np.array(lengths), 32).lengths.max() == 33


def test_the_index_says_when_it_is_damaged_or_of_other_data(tmp_path):
    def reader() -> RowReader:
        return RowReader(open_dataset(tmp_path / "a", "train"), RowOptions(32, "best_fit"))

    labelled(tmp_path / "a", [9, 30, 14, 25, 8] * 9, shard_tokens=10_000)
    first = reader().read(0, np.array([1, 0])).tokens.tolist()
    path = tmp_path / "a/train/shard-00000.pack-32"
    good = path.read_bytes()
    assert reader().read(0, np.array([1, 0])).tokens.tolist() == first

    for damaged, message in (
        (good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "is damaged"),
        (good[:-4], "is damaged"),
        (good[:20], "has 20 bytes"),
        (b"X" + good[1:], "is not version 1"),
        (good[:40] + bytes([good[40] ^ 1]) + good[41:], "was made from other documents"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=message):
            reader().read(0, np.array([0]))
    path.write_bytes(good)

    labelled(tmp_path / "b", [9, 30, 14] * 9, shard_tokens=10_000)
    for name in ("shard-00000.pack-32", "pack-32.json"):
        shutil.copy(tmp_path / "a/train" / name, tmp_path / "b/train" / name)
    # A summary of other data is made anew, and the index with it.
    other = RowReader(open_dataset(tmp_path / "b", "train"), RowOptions(32, "best_fit"))
    assert other.rows() == len(pack_best_fit(np.array([9, 30, 14] * 9), 32).firsts) - 1
    other.read(0, np.arange(other.rows()))


def test_an_index_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    whole = labelled(tmp_path, [9, 30])
    monkeypatch.setattr(whole.files, "place", lambda name: tmp_path / "gone" / name)
    with pytest.raises(DataError, match="the rows of packing best_fit for sequence_length 16 must be made once"):
        RowReader(whole, RowOptions(16, "best_fit"))


def _rows_of(folder: str) -> int:
    return RowReader(open_dataset(folder, "train"), RowOptions(32, "best_fit")).rows()


def test_processes_that_ask_at_once_agree(tmp_path):
    labelled(tmp_path, [9, 30, 14, 25, 8] * 40)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.map(_rows_of, [str(tmp_path)] * 3))) == 1
    assert not list(tmp_path.rglob("*.part*"))


def test_a_store_without_an_index_gets_one_in_the_cache(tmp_path):
    from data_pipeline.stream.options import CacheOptions

    labelled(tmp_path / "store", [9, 30, 14, 25, 8] * 9)
    before = sorted((tmp_path / "store").rglob("*"))
    cache = CacheOptions(folder=tmp_path / "cache", limit_bytes=10_000_000)
    options = RowOptions(32, "best_fit", isolate_documents=True)

    def read() -> list[list[int]]:
        reader = RowReader(open_dataset(f"file://{tmp_path}/store", "train", cache), options)
        return reader.read(0, np.arange(reader.rows())).tokens.tolist()

    found = read()
    assert sorted((tmp_path / "store").rglob("*")) == before
    local = RowReader(open_dataset(tmp_path / "store", "train"), options)
    assert local.read(0, np.arange(local.rows())).tokens.tolist() == found
    # Now the store has one: a new cache takes it from there.
    shutil.rmtree(tmp_path / "cache")
    assert read() == found
    assert not list((tmp_path / "cache/.common").rglob("shard-*"))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_command(tmp_path, capsys, processes):
    labelled(tmp_path, [9, 30, 14, 25, 8, 50] * 9)
    arguments = ["data", "pack", str(tmp_path), "--sequence-length", "32", "--processes", processes, "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["documents"] == 54 and found["thrown_away"] == 0
    assert found["rows"] == RowReader(open_dataset(tmp_path, "train"), RowOptions(32, "best_fit")).rows()
    assert main([*arguments[:-1], "--packing", "bos_fit"]) == 0
    assert "54 documents in" in capsys.readouterr().out
    assert main(["data", "verify", str(tmp_path)]) == 0
    assert main(["data", "pack", str(tmp_path), "--sequence-length", "0"]) == 2


def test_two_ranks_share_an_odd_number_of_packed_rows(tmp_path):
    """No rank runs out before the other: a batch goes over the end of an epoch, and nothing is dropped."""
    labelled(tmp_path, [33] * 11 + [9, 30, 14], shard_tokens=10_000)
    source = SourceOptions(tmp_path, rows=RowOptions(32, "best_fit"))
    loader = Batches({"a": source}, "train", 32, seed=1)
    [rows] = loader.row_counts
    assert rows % 2 == 1
    seen = [[loader.rows(2 * step + rank, 1).tokens[0].tolist() for step in range(rows)] for rank in range(2)]
    reader = RowReader(open_dataset(tmp_path, "train"), RowOptions(32, "best_fit"))
    every = reader.read(0, np.arange(rows)).tokens.tolist()
    assert sorted(seen[0] + seen[1]) == sorted(every + every)

"""Rows of documents that follow one another: pairs, epochs, boundaries, buffers."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.writer import write_documents
from data_pipeline.rows.batch import IGNORE, Batch
from data_pipeline.rows.boundaries import cu_seqlens, longest
from data_pipeline.rows.pieces import boundaries
from data_pipeline.rows.reader import RowOptions, RowReader
from tests.data_pipeline.kit import EOD


def dataset(folder: Path, documents: list[list[int]], **options) -> TokenDataset:
    write_documents(folder, {"train": documents}, vocab_size=options.pop("vocab_size", 70_000), eod_id=EOD, **options)
    return open_dataset(folder, "train")


def labelled(folder: Path, tokens: int, shard_tokens: int = 100) -> TokenDataset:
    """Documents of one token and EOD: token 2k of the split is 1000 + k."""
    return dataset(folder, [[1000 + k] for k in range(tokens // 2)], shard_tokens=shard_tokens)


def everything(reader: RowReader, epoch: int = 0) -> Batch:
    return reader.read(epoch, np.arange(reader.rows()))


def copied(batch: Batch) -> list[np.ndarray]:
    return [array.copy() for array in batch if array is not None]


def test_rows_share_a_token_and_no_pair_is_missing(tmp_path):
    """Tokens 0 to 24 and S = 6: four rows."""
    reader = RowReader(dataset(tmp_path, [list(range(24))], shard_tokens=7), RowOptions(6))
    batch = everything(reader)
    assert batch.tokens.tolist() == [list(range(start, start + 6)) for start in (0, 6, 12, 18)]
    assert batch.labels.tolist() == [[*range(1, 7)], [*range(7, 13)], [*range(13, 19)], [*range(19, 24), EOD]]


@pytest.mark.parametrize("compact", [1 << 32, 0], ids=["four bytes", "eight bytes, as for shards of 2^32 tokens"])
def test_boundaries_are_those_of_the_lengths(tmp_path, monkeypatch, compact):
    """Of every stretch of the split: strictly inside of it, in whichever shards, among many short documents, too."""
    monkeypatch.setattr("data_pipeline.format.dataset._COMPACT", compact)
    draw = np.random.default_rng(5)
    lengths = [*draw.integers(1, 40, 30), *[1] * 50, *draw.integers(1, 9, 30), 60]
    whole = dataset(tmp_path, [[7] * (length - 1) for length in lengths], shard_tokens=170)
    assert len(whole.shards) > 3
    assert whole.ends[0].ends.itemsize == (4 if compact else 8)
    ends, width = np.cumsum(lengths), 13
    assert [whole.document_span(number)[1] for number in range(len(lengths))] == ends.tolist()
    assert [whole.document_at(int(end) - 1) for end in ends] == list(range(len(lengths)))
    assert [whole.document_at(int(end)) for end in ends[:-1]] == list(range(1, len(lengths)))
    for start, length in itertools.product(range(whole.tokens), range(1, width + 1)):
        stop = min(start + length, whole.tokens)
        inside = ends[(ends > start) & (ends < stop)] - start + 2 * width
        assert boundaries(whole, [(0, 0, start, stop - start)], [2], width, True).tolist() == inside.tolist()


@pytest.mark.parametrize(("tokens", "length"), [(1000, 16), (1000, 999), (998, 7), (64, 64), (500, 1)])
def test_each_epoch_has_every_pair_at_most_once(tmp_path, tokens, length):
    """All but the N - RS pairs before the first cut, on the circle of the split."""
    whole = labelled(tmp_path, tokens)
    stream = whole.read(0, tokens).astype(np.int64)
    place = {int(token): k for k, token in enumerate(stream) if token != EOD}
    reader = RowReader(whole, RowOptions(length, seed=3, source="web"))
    if tokens == length:
        assert reader.rows() == 0
        return
    seen = []
    for epoch in range(4):
        batch = everything(reader, epoch)
        # A pair is told by its token that is no EOD: EOD stands between two of those.
        first = [place.get(a, place.get(b, 0) - 1) for a, b in zip(batch.tokens.flat, batch.labels.flat, strict=True)]
        pairs = Counter(number % tokens for number in first)
        assert max(pairs.values()) == 1 and len(pairs) == reader.rows() * length
        left_out = sorted(set(range(tokens)) - set(pairs))
        shift = (first[0]) % tokens
        assert left_out == sorted((shift - 1 - k) % tokens for k in range(tokens - len(pairs)))
        assert np.array_equal(batch.labels, stream[(np.array(first).reshape(batch.labels.shape) + 1) % tokens])
        seen.append(shift)
    assert seen[0] == 0 and all(shift < length for shift in seen)
    assert length == 1 or len(set(seen)) > 1


def test_shifts_depend_on_seed_source_and_epoch_alone(tmp_path):
    whole = labelled(tmp_path, 1000)
    options = [RowOptions(100, seed=seed, source=source) for seed, source in ((1, "a"), (2, "a"), (1, "b"))]
    first = [everything(RowReader(whole, one), 1).tokens[0, :2].tolist() for one in options]
    assert len({tuple(one) for one in first}) == 3
    assert everything(RowReader(whole, options[0]), 1).tokens[0, :2].tolist() == first[0]
    again = RowReader(whole, options[0]).read(1, np.array([4, 0, 4]))
    assert np.array_equal(again.tokens, everything(RowReader(whole, options[0]), 1).tokens[[4, 0, 4]])


def test_shifts_are_all_numbers_below_the_length(tmp_path):
    rows = RowReader(labelled(tmp_path, 40), RowOptions(4, seed=1))._rows
    assert rows.shift(0) == 0  # type: ignore[attr-defined]
    assert {rows.shift(epoch) for epoch in range(1, 200)} == {0, 1, 2, 3}  # type: ignore[attr-defined]


def test_a_row_over_the_end_of_the_split_begins_a_document(tmp_path):
    reader = RowReader(labelled(tmp_path, 40), RowOptions(13, isolate_documents=True, seed=1))
    epoch = next(number for number in range(1, 50) if reader._rows.shift(number) > 4)  # type: ignore[attr-defined]
    batch = reader.read(epoch, np.array([reader.rows() - 1]))
    seam = batch.tokens[0].tolist().index(1000)
    assert batch.tokens[0, seam - 1] == EOD and batch.labels[0, seam - 1] == IGNORE
    assert batch.positions is not None and batch.positions[0, seam] == 0


def test_parts_of_longer_rows(tmp_path):
    """A run whose rows get longer: short rows are equal parts of the long ones, in each epoch."""
    rng = np.random.default_rng(0)
    whole = dataset(tmp_path, [list(range(300, 300 + n)) for n in rng.integers(1, 60, 80)], shard_tokens=200)
    for packing in ("concat", "best_fit"):
        long = RowReader(whole, RowOptions(48, packing, seed=5))
        short = RowReader(whole, RowOptions(16, packing, longest=48, seed=5))
        assert short.rows() == 3 * long.rows()
        assert np.array_equal(short.rows_per_shard, 3 * long.rows_per_shard)
        for epoch in range(3):
            a, b = everything(long, epoch), everything(short, epoch)
            assert np.array_equal(a.tokens.ravel(), b.tokens.ravel())
            assert np.array_equal(a.labels.ravel(), b.labels.ravel())
    with pytest.raises(DataError, match="sequence_length = 20 does not divide the longest one, 48"):
        RowReader(whole, RowOptions(20, longest=48))


def slow_reference(whole: TokenDataset, length: int) -> list[list[list[int]]]:
    """Tokens, labels, positions and ids of every row, one token at a time."""
    documents = [whole.document(index).tolist() for index in range(whole.documents)]
    stream = [(token, number) for number, document in enumerate(documents) for token in document]
    rows: list[list[list[int]]] = [[], [], [], []]
    for start in range(0, (len(stream) - 1) // length * length, length):
        part = stream[start : start + length + 1]
        ids = [number - part[0][1] for _, number in part]
        rows[0].append([token for token, _ in part[:-1]])
        rows[1].append([b if m == n else IGNORE for (_, n), (b, m) in itertools.pairwise(part)])
        rows[2].append([k - ids.index(number) for k, number in enumerate(ids[:-1])])
        rows[3].append(ids[:-1])
    return rows


@pytest.mark.parametrize("length", [1, 5, 16, 33])
def test_isolated_documents_are_as_worked_out_token_by_token(tmp_path, length):
    rng = np.random.default_rng(length)
    whole = dataset(tmp_path, [list(range(300, 300 + n)) for n in rng.integers(0, 40, 60)], shard_tokens=150)
    batch = everything(RowReader(whole, RowOptions(length, isolate_documents=True)))
    assert [array.tolist() for array in batch[:4] if array is not None] == slow_reference(whole, length)


def test_no_segment_is_empty_where_documents_end_at_the_edges_of_rows(tmp_path):
    """Lengths with EOD 16, 16, 32, 8, 8 and S = 16."""
    whole = dataset(tmp_path, [[k + 1] * (n - 1) for k, n in enumerate([16, 16, 32, 8, 8])])
    batch = everything(RowReader(whole, RowOptions(16, isolate_documents=True)))
    assert cu_seqlens(batch).tolist() == [0, 16, 32, 48, 64]
    assert cu_seqlens(batch).dtype == np.int32
    assert (batch.labels != IGNORE).sum(axis=1).tolist() == [15, 15, 16, 15]
    batch = everything(RowReader(whole, RowOptions(12, isolate_documents=True)))
    assert cu_seqlens(batch).tolist() == [0, 12, 16, 24, 32, 36, 48, 60, 64, 72]
    assert longest(cu_seqlens(batch)) == 12
    assert cu_seqlens(everything(RowReader(whole, RowOptions(12)))).tolist() == [0, 12, 24, 36, 48, 60, 72]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_used_buffer_leaves_no_trace(tmp_path, packing):
    rng = np.random.default_rng(1)
    whole = dataset(tmp_path, [list(range(300, 300 + n)) for n in rng.integers(1, 30, 60)])
    for options in (RowOptions(20, packing, isolate_documents=True), RowOptions(20, packing, train_on="after:305")):
        reader = RowReader(whole, options)
        out = reader.buffer(3)
        for rows in ([0, 1, 2], [5, 3, 4], [6, 6, 0], [9, 1, 8]):
            used, fresh = reader.read(0, np.array(rows), out), RowReader(whole, options).read(0, np.array(rows))
            assert [a.tolist() for a in copied(used)] == [a.tolist() for a in copied(fresh)]
        memory = out.block
        assert np.shares_memory(reader.read(0, np.array([1, 2, 3]), out).tokens, memory)


def test_sources_share_a_buffer(tmp_path):
    a, b = labelled(tmp_path / "a", 200), dataset(tmp_path / "b", [[5] * 30] * 20, shard_tokens=100)
    options = RowOptions(16, isolate_documents=True)
    readers = RowReader(a, options), RowReader(b, options)
    out = readers[0].buffer(5)
    readers[1].fill(out, [3, 0], 1, [7, 2])
    readers[0].fill(out, [1, 4, 2], 0, [0, 9, 5])
    batch = out.finish()
    for reader, epoch, places, rows in ((readers[1], 1, [3, 0], [7, 2]), (readers[0], 0, [1, 4, 2], [0, 9, 5])):
        alone = reader.read(epoch, np.array(rows))
        assert all(np.array_equal(x[places], y) for x, y in zip(batch[:4], alone[:4], strict=True))  # type: ignore[index]


def test_a_row_that_is_not_there_is_refused(tmp_path):
    reader = RowReader(labelled(tmp_path, 40), RowOptions(13))
    with pytest.raises(DataError, match="has rows 0 to 2, not 1 to 3"):
        reader.read(0, np.array([1, 3]))


def test_rows_come_in_any_order_and_more_than_once(tmp_path):
    reader = RowReader(labelled(tmp_path, 400), RowOptions(30, isolate_documents=True))
    last = reader.rows() - 1
    # In some epochs the last row goes over the end of the split.
    assert any(len(reader.pieces(epoch, [last])) > 1 for epoch in range(5))
    for epoch in range(5):
        numbers = np.array([3, last, 0, last, 7])
        alone = [reader.read(epoch, np.array([number])) for number in numbers]
        batch = reader.read(epoch, numbers)
        for whole, parts in zip(batch[:4], zip(*(one[:4] for one in alone), strict=True), strict=True):
            assert np.array_equal(whole, np.concatenate(parts))


def test_rows_of_a_shard_that_is_out_do_not_count(tmp_path, monkeypatch):
    whole = labelled(tmp_path, 400)
    monkeypatch.setattr(whole.files, "out", {1})
    batch = everything(RowReader(whole, RowOptions(30)))
    counted = (batch.labels != IGNORE).any(axis=1).tolist()
    touched = [start < 200 and start + 31 > 100 for start in range(0, 390, 30)]
    assert counted == [not one for one in touched]
    assert touched.count(True) == 4


def test_rows_per_shard_are_those_that_begin_there(tmp_path):
    reader = RowReader(labelled(tmp_path, 1000, shard_tokens=120), RowOptions(32))
    starts = np.arange(reader.rows()) * 32
    shards = np.searchsorted(reader.dataset.shard_starts, starts, side="right") - 1
    assert reader.rows_per_shard.tolist() == np.bincount(shards, minlength=len(reader.dataset.shards)).tolist()

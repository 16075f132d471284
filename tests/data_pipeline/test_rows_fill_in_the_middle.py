"""Fill-in-the-middle, and which labels count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.writer import write_documents
from data_pipeline.rows.batch import IGNORE
from data_pipeline.rows.fill_in_the_middle import NAMES, SHORTEST, FillInTheMiddle, find_marks
from data_pipeline.rows.reader import RowOptions, RowReader
from data_pipeline.tokenizer.base import load_tokenizer
from tests.data_pipeline.kit import EOD, byte_tokenizer

PREFIX, SUFFIX, MIDDLE = MARKS = (997, 998, 999)


def dataset(folder: Path, lengths: list[int], seed: int = 0, shard_tokens: int = 10_000) -> TokenDataset:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, 256, length).tolist() for length in lengths]
    write_documents(folder, {"train": documents}, vocab_size=1000, eod_id=EOD, shard_tokens=shard_tokens)
    return open_dataset(folder, "train")


def moved_back(piece: list[int]) -> tuple[str, list[int]]:
    """The kind of a rearranged piece and its text in the order in which it was written."""
    suffix, middle = piece.index(SUFFIX), piece.index(MIDDLE)
    assert piece[0] == PREFIX and sorted(mark for mark in piece if mark > EOD) == list(MARKS)
    if suffix == 1:
        return "SPM", piece[middle + 1 :] + piece[2:middle]
    return "PSM", piece[1:suffix] + piece[middle + 1 :] + piece[suffix + 1 : middle]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_the_middle_moved_back_gives_the_document(tmp_path, packing):
    whole = dataset(tmp_path, np.random.default_rng(1).integers(0, 60, 150).tolist(), shard_tokens=900)
    plain = RowReader(whole, RowOptions(64, packing, isolate_documents=True))
    middle = FillInTheMiddle(0.7, MARKS, spm_rate=0.4)
    reader = RowReader(
        whole, RowOptions(64, packing, isolate_documents=True, fill_in_the_middle=middle, seed=4, source="code")
    )
    rows = np.arange(plain.rows())
    out, before = reader.buffer(len(rows)), plain.buffer(len(rows))
    batch = reader.read(0, rows, out)
    expected = plain.read(0, rows, before)
    assert all(np.array_equal(a, b) for a, b in zip(batch[2:], expected[2:], strict=True))  # type: ignore[arg-type]
    assert np.array_equal(batch.labels == IGNORE, expected.labels == IGNORE)
    kinds = {"PSM": 0, "SPM": 0, "plain": 0}
    assert batch.document_ids is not None
    for row in rows:
        # The last token of a row is only a label, and belongs to the last piece unless that ends before.
        ids = np.append(batch.document_ids[row], batch.document_ids[row, -1] + int(expected.labels[row, -1] == IGNORE))
        for number in range(ids.max() + 1):
            piece, original = out.block[row, ids == number].tolist(), before.block[row, ids == number].tolist()
            if original[-1] == EOD:
                assert piece.pop() == original.pop()
            if PREFIX not in piece:
                assert piece == original
                kinds["plain"] += len(original) >= SHORTEST and original[0] != EOD
            else:
                kind, text = moved_back(piece)
                assert text == original[:-3] and len(piece) == len(original) >= SHORTEST
                kinds[kind] += 1
    total = sum(kinds.values())
    assert abs(kinds["plain"] / total - 0.3) < 0.12 and abs(kinds["SPM"] / (total - kinds["plain"]) - 0.4) < 0.12
    assert total > 80


def rearranged(pieces: list[list[int]], middle: FillInTheMiddle, key: str) -> list[int]:
    """One row of these documents."""
    block = np.array([[token for piece in pieces for token in piece]])
    starts = np.cumsum([len(piece) for piece in pieces])[:-1]
    middle.apply(block, [0], starts, EOD, [key])
    return block[0].tolist()


def test_cuts_are_drawn_from_all_places_and_the_shortest_piece_is_cut():
    middle = FillInTheMiddle(1.0, MARKS, spm_rate=0.0)
    pieces = [[1, 2, 3, 4, 5, 6]]
    assert len(pieces[0]) == SHORTEST
    # Of three tokens: two cuts at places 0 to 3, which may be the same.
    assert len({str(rearranged(pieces, middle, str(key))) for key in range(400)}) == 10
    assert rearranged([[1, 2, 3, 4, 5]], middle, "key") == [1, 2, 3, 4, 5]


def test_each_piece_of_a_row_is_drawn_for_by_itself():
    piece = [*range(1, 20), EOD]
    rows = [rearranged([piece, piece], FillInTheMiddle(0.5, MARKS), str(key)) for key in range(200)]
    changed = [(row[:20] != piece, row[20:] != piece) for row in rows]
    assert all(30 <= changed.count(both) <= 70 for both in {(a, b) for a in (False, True) for b in (False, True)})
    assert sum(row[:20] == row[20:] for row, both in zip(rows, changed, strict=True) if all(both)) < 10


def test_what_is_drawn_depends_on_seed_source_epoch_and_row_alone(tmp_path):
    whole = dataset(tmp_path, [50] * 40)

    def tokens(epoch: int = 0, rows: tuple[int, ...] = (3,), **options) -> list[list[int]]:
        chosen = {"seed": 1, "source": "code", **options}
        middle = FillInTheMiddle(1.0, MARKS)
        # Packed rows hold the same text in each epoch.
        reader = RowReader(whole, RowOptions(101, "best_fit", fill_in_the_middle=middle, **chosen))
        return reader.read(epoch, np.array(rows)).tokens.tolist()

    base = tokens()
    assert tokens() == base and tokens(rows=(5, 3))[1:] == base
    assert len({str(one) for one in (base, tokens(1), tokens(seed=2), tokens(source="web"))}) == 4


def test_rates_and_marks_are_checked(tmp_path):
    whole = dataset(tmp_path, [50] * 4)
    for middle, message in (
        (FillInTheMiddle(1.5, MARKS), r"fill_in_the_middle.rate = 1.5 is no share"),
        (FillInTheMiddle(0.5, MARKS, -0.1), r"fill_in_the_middle.spm_rate = -0.1 is no share"),
        (FillInTheMiddle(0.5, (997, 998, 1000)), r"has 1000 tokens, and .*\(997, 998, 1000\) are not three of them"),
        (FillInTheMiddle(0.5, (997, 997, 999)), "are not three of them"),
    ):
        with pytest.raises(DataError, match=message):
            RowReader(whole, RowOptions(16, fill_in_the_middle=middle))


def test_marks_are_found_by_name(tmp_path):
    plain = load_tokenizer(byte_tokenizer(tmp_path / "plain"))
    with pytest.raises(DataError, match="has no tokens for fill-in-the-middle"):
        find_marks(plain)
    for number, names in enumerate(NAMES):
        folder = byte_tokenizer(tmp_path / str(number), specials=["<|endoftext|>", *names])
        assert find_marks(load_tokenizer(folder)) == (257, 258, 259)
    own = load_tokenizer(byte_tokenizer(tmp_path / "own", specials=["<|endoftext|>", "<a>", "<b>", "<c>"]))
    assert find_marks(own, ("<b>", "<a>", "<c>")) == (258, 257, 259)
    with pytest.raises(DataError, match=r"looked for <x> <a> <b>"):
        find_marks(own, ("<x>", "<a>", "<b>"))


def write(folder: Path, documents: list[list[int]]) -> TokenDataset:
    write_documents(folder, {"train": documents}, vocab_size=1000, eod_id=EOD)
    return open_dataset(folder, "train")


@pytest.mark.parametrize("isolate", [False, True])
def test_labels_behind_a_token(tmp_path, isolate):
    """Worked out by hand: 7 begins what is to be learned."""
    whole = write(tmp_path, [[1, 2, 7, 3, 4], [5, 6], [7, 8, 7, 9], [1, 1, 1]])
    batch = RowReader(whole, RowOptions(8, isolate_documents=isolate, train_on="after:7")).read(0, np.array([0, 1]))
    assert batch.tokens.tolist() == [[1, 2, 7, 3, 4, EOD, 5, 6], [EOD, 7, 8, 7, 9, EOD, 1, 1]]
    # In the second row nothing stands before document 2 but the end of document 1; document 3 has no 7.
    n = IGNORE
    assert batch.labels.tolist() == [[n, n, 3, 4, EOD, n, n, n], [n, 8, 7, 9, EOD, n, n, n]]


def test_a_source_that_is_not_trained_on(tmp_path):
    whole = write(tmp_path, [[1, 2, 3]] * 9)
    batch = RowReader(whole, RowOptions(8, train_on="none")).read(0, np.array([1, 0]))
    assert (batch.labels == IGNORE).all() and batch.tokens[0].tolist() == [1, 2, 3, EOD] * 2
    with pytest.raises(DataError, match="train_on = 'some' is not known; use all, none or after:<token id>"):
        RowReader(whole, RowOptions(8, train_on="some"))
    with pytest.raises(DataError, match="train_on = 'after:x' is not known"):
        RowReader(whole, RowOptions(8, train_on="after:x"))

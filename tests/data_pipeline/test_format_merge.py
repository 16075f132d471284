"""Merging and cutting anew keep every document and its origin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.manifest import ORIGIN_DTYPE, Manifest, Source, read_manifest
from data_pipeline.format.merge import merge
from data_pipeline.format.pieces import PIECE_TOKENS, groups, pieces_of
from data_pipeline.format.reshard import reshard
from data_pipeline.format.verify import verify
from data_pipeline.format.writer import DatasetWriter, write_documents
from tests.data_pipeline.kit import EOD, files_of

A = [[1], [2, 2], [3, 3, 3]]
B = [[4] * 4, [5] * 5, [6] * 6, [7]]


def write(folder: Path, documents: list[list[int]], file: str | None, shard_tokens: int = 9, **options) -> Manifest:
    """A data set, whose documents come from the lines of one file if it is told."""
    with DatasetWriter(folder, vocab_size=257, eod_id=EOD, shard_tokens=shard_tokens) as writer:
        for record, ids in enumerate(documents):
            origins = np.array([(0, record)], ORIGIN_DTYPE) if file else None
            writer.add("train", np.array([*ids, EOD]), np.array([len(ids) + 1]), len(ids), origins)
        return writer.finish(origins=[file] if file else None, settings={"shard_tokens": shard_tokens}, **options)


def documents_in(folder: Path) -> list[list[int]]:
    dataset = open_dataset(folder, "train")
    return [dataset.document(index).tolist()[:-1] for index in range(dataset.documents)]


def origins_in(folder: Path) -> list[tuple[str, int] | None]:
    dataset = open_dataset(folder, "train")
    return [dataset.origin(index) for index in range(dataset.documents)]


@pytest.mark.parametrize("copy", [False, True])
def test_merged_documents_are_those_of_one_build(tmp_path, copy):
    write(tmp_path / "a", A, "a.jsonl")
    write(tmp_path / "b", B, "b.jsonl")
    manifest = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", copy=copy)
    assert documents_in(tmp_path / "both") == A + B
    assert origins_in(tmp_path / "both") == [("a.jsonl", k) for k in range(3)] + [("b.jsonl", k) for k in range(4)]
    split = manifest.splits["train"]
    assert (split.documents, split.tokens, split.longest, split.text_bytes) == (7, 29, 7, 22)
    assert read_manifest(tmp_path / "both") == manifest and verify(tmp_path / "both")
    write(tmp_path / "one", A + B, None)
    whole = open_dataset(tmp_path / "both", "train")
    assert whole.read(0, 29).tolist() == open_dataset(tmp_path / "one", "train").read(0, 29).tolist()
    linked = (tmp_path / "both/train/shard-00000.bin").samefile(tmp_path / "a/train/shard-00000.bin")
    assert linked is not copy


def test_sets_with_and_without_origins_merge(tmp_path):
    write(tmp_path / "a", A, None)
    write(tmp_path / "b", B, "b.jsonl")
    expected = [None] * 3 + [("b.jsonl", k) for k in range(4)]
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    reshard(tmp_path / "both", tmp_path / "again", 1000)
    for folder in (tmp_path / "both", tmp_path / "again"):
        assert (documents_in(folder), origins_in(folder)) == (A + B, expected)
        assert verify(folder)


def test_documents_of_unknown_origin_stay_so_behind_other_files(tmp_path):
    for name, documents, file in (("a", A, None), ("b", B, "b.jsonl"), ("c", A, "c.jsonl")):
        write(tmp_path / name, documents, file)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    reshard(tmp_path / "both", tmp_path / "mixed", 1000)  # one shard of documents with and without
    merge([tmp_path / "c", tmp_path / "mixed"], tmp_path / "all")
    known = [("c.jsonl", k) for k in range(3)], [("b.jsonl", k) for k in range(4)]
    assert origins_in(tmp_path / "all") == [*known[0], None, None, None, *known[1]]


def test_what_a_merged_set_says_of_itself(tmp_path):
    for name, ids in (("a", [5]), ("b", [250])):
        source = Source(name, name * 32, 1, 1, {"train": 1}, {"train": 2}, 0, {})
        with DatasetWriter(tmp_path / name, vocab_size=300, eod_id=0) as writer:
            writer.add("train", np.array([*ids, 0]), np.array([2]))
            writer.finish(sources=[source])
        (tmp_path / name / "tokenizer").mkdir()
        (tmp_path / name / "tokenizer/tokenizer.json").write_text(name)
    manifest = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both", name="mine")
    assert (manifest.name, manifest.largest_id) == ("mine", 250)
    assert [source.name for source in manifest.sources] == ["a", "b"]
    assert (tmp_path / "both/tokenizer/tokenizer.json").read_text() == "a"


def test_what_does_not_fit_is_named(tmp_path):
    write(tmp_path / "a", A, "a.jsonl")
    write(tmp_path / "b", B, "b.jsonl", tokenizer={"digest": "another"})
    with pytest.raises(DataError, match=r"b: has tokenizer \{'digest': 'another'\}, but .*a has \{\}"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    (tmp_path / "a/train/shard-00000.org").unlink()
    with pytest.raises(DataError, match=r"shard-00000\.org: is missing"):
        merge([tmp_path / "a"], tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_damaged_origins_do_not_get_a_good_hash(tmp_path):
    write(tmp_path / "a", A, "a.jsonl")
    write(tmp_path / "b", B, "b.jsonl")
    path = tmp_path / "b/train/shard-00001.org"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"shard-00001\.org: has hash"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "both")
    assert not (tmp_path / "both").exists() and not (tmp_path / "both.building").exists()


@pytest.mark.parametrize("shard_tokens", [1, 7, 12, 1000])
def test_cut_anew_is_as_built_so(tmp_path, shard_tokens):
    write(tmp_path / "a", A + B, "a.jsonl", shard_tokens=10, name="x")
    write(tmp_path / "b", A + B, "a.jsonl", shard_tokens=shard_tokens, name="x")
    reshard(tmp_path / "a", tmp_path / "again", shard_tokens)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "b")


def test_damage_is_not_cut_anew(tmp_path):
    write(tmp_path / "a", A + B, "a.jsonl")
    path = tmp_path / "a/train/shard-00000.bin"
    path.write_bytes(b"\x09" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"shard-00000\.bin: MiB 0"):
        reshard(tmp_path / "a", tmp_path / "again", 5)
    with pytest.raises(DataError, match="--shard-tokens 0"):
        reshard(tmp_path / "a", tmp_path / "again", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_pieces_are_bounded_and_whole(tmp_path):
    random = np.random.default_rng(0)
    lengths = np.append(random.integers(1, 3_000_000, 40), [PIECE_TOKENS + 5, 1])
    ends = np.cumsum(lengths)
    ranges = list(groups(ends))
    assert [first for first, _ in ranges] == [0] + [stop for _, stop in ranges[:-1]]
    assert ranges[-1][1] == len(lengths)
    for first, stop in ranges:
        assert lengths[first:stop].sum() <= PIECE_TOKENS or stop == first + 1
        assert stop == len(lengths) or lengths[first : stop + 1].sum() > PIECE_TOKENS
    write_documents(tmp_path / "set", {"train": A + B}, vocab_size=257, eod_id=EOD, shard_tokens=8)
    pieces = list(pieces_of(open_dataset(tmp_path / "set", "train")))
    assert np.concatenate([piece.lengths for piece in pieces]).tolist() == [len(ids) + 1 for ids in A + B]

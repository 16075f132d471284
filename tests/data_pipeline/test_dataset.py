"""Shards written and read back; damage named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.files import check_sizes
from data_pipeline.format.manifest import (
    LENGTH_DTYPE,
    ORIGIN_DTYPE,
    UNKNOWN_FILE,
    Manifest,
    Shard,
    Split,
    read_manifest,
    token_dtype,
    write_manifest,
    write_whole,
)
from data_pipeline.format.recent import Recent
from data_pipeline.format.verify import verify
from data_pipeline.format.writer import DatasetWriter, ShardWriter, write_documents
from data_pipeline.rows.concat import row_count
from tests.data_pipeline.kit import EOD, files_of

DOCUMENTS = [[65 + i] * (i + 1) for i in range(5)]


def write(folder: Path, documents: list[list[int]] = DOCUMENTS, **options: object) -> Manifest:
    splits = {"train": documents, "validation": [[1, 2]]}
    return write_documents(folder, splits, vocab_size=257, eod_id=EOD, **options)


def test_a_small_file_that_cannot_be_written_leaves_the_old_one_alone(tmp_path, monkeypatch):
    write_whole(tmp_path / "small", b"old")

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "small", b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("small", b"old")]


def test_lengths_include_the_end_of_document(tmp_path):
    write(tmp_path / "set")
    dataset = open_dataset(tmp_path / "set", "train")
    assert (dataset.tokens, dataset.documents) == (20, 5)
    assert [dataset.document(k).tolist() for k in range(5)] == [[*document, EOD] for document in DOCUMENTS]
    lengths = np.fromfile(tmp_path / "set/train/shard-00000.len", LENGTH_DTYPE)
    assert lengths.tolist() == [2, 3, 4, 5, 6]
    assert (tmp_path / "set/train/shard-00000.bin").stat().st_size == lengths.sum() * 2


def test_documents_stay_whole_and_reading_crosses_shards(tmp_path):
    manifest = write(tmp_path / "set", shard_tokens=7)
    assert [(shard.documents, shard.tokens) for shard in manifest.splits["train"].shards] == [
        (2, 5),
        (1, 4),
        (1, 5),
        (1, 6),
    ]
    dataset = open_dataset(tmp_path / "set", "train")
    whole = [token for document in DOCUMENTS for token in [*document, EOD]]
    assert dataset.read(0, 20).tolist() == whole
    for start in (0, 3, 8, 14):
        assert dataset.read(start, start + 6).tolist() == whole[start : start + 6]
    assert dataset.boundaries(0, 20).tolist() == [2, 5, 9, 14]
    assert dataset.boundaries(2, 14).tolist() == [5, 9]
    assert [dataset.document_span(k) for k in range(5)] == [(0, 2), (2, 5), (5, 9), (9, 14), (14, 20)]


def test_one_call_cuts_into_the_same_shards_as_many(tmp_path):
    write(tmp_path / "many", shard_tokens=7)
    with DatasetWriter(tmp_path / "once", vocab_size=257, eod_id=EOD, shard_tokens=7) as writer:
        ids = np.array([token for document in DOCUMENTS for token in [*document, EOD]])
        writer.add("train", ids, np.array([2, 3, 4, 5, 6]))
        writer.add("validation", np.array([1, 2, EOD]), np.array([3]))
        writer.finish(name="many")
    assert files_of(tmp_path / "once") == files_of(tmp_path / "many")


def test_lengths_beyond_the_token_type(tmp_path):
    lengths = [65_535, 65_536, 70_001]
    write(tmp_path / "set", [[7] * length for length in lengths])
    dataset = open_dataset(tmp_path / "set", "train")
    spans = [dataset.document_span(k) for k in range(3)]
    assert [stop - start for start, stop in spans] == [length + 1 for length in lengths]


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(257, 2), (65_500, 2), (65_536, 2), (65_537, 4), (80_000, 4)])
def test_the_type_follows_the_full_vocabulary(tmp_path, vocab_size, itemsize):
    assert token_dtype(vocab_size).itemsize == itemsize
    last = vocab_size - 1
    ids = [0, *(token for token in (255, 65_499, 65_535, 65_536, 79_998) if token < last), last]
    write_documents(tmp_path / "set", {"train": [ids]}, vocab_size=vocab_size, eod_id=1)
    dataset = open_dataset(tmp_path / "set", "train")
    assert dataset.document(0).tolist() == [*ids, 1]
    assert dataset.manifest.largest_id == last


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(DataError, match="token id 257 is outside the vocabulary of 257"):
        write(tmp_path / "set", [[257]])
    assert not list(tmp_path.iterdir())


def sparse_set(folder: Path, lengths: list[int], shards: int) -> None:
    """A data set of zeros that takes no room on disk."""
    (folder / "train").mkdir(parents=True)
    records = []
    for number, part in enumerate(np.array_split(np.array(lengths), shards)):
        stem = folder / f"train/shard-{number:05d}"
        part.astype(LENGTH_DTYPE).tofile(f"{stem}.len")
        tokens = int(part.sum())
        with open(f"{stem}.bin", "wb") as file:
            file.truncate(tokens * 2)
        records.append(Shard(stem.name, tokens, len(part), tokens * 2, "", "", ""))
    split = Split(sum(lengths), len(lengths), max(lengths), 0, tuple(records))
    write_manifest(folder, Manifest("sparse", "uint16", 257, EOD, None, 0, {"train": split}))


@pytest.mark.parametrize("shards", [1, 7])
def test_offsets_beyond_32_bits(tmp_path, shards):
    sparse_set(tmp_path, [5_000_000] * 600, shards)
    dataset = open_dataset(tmp_path, "train")
    start, stop = dataset.document_span(599)
    assert (start * 2, stop - start) == (599 * 10_000_000, 5_000_000)
    assert dataset.read(stop - 3, stop).tolist() == [0, 0, 0]


def test_more_tokens_than_32_bits(tmp_path):
    sparse_set(tmp_path, [900_000_000] * 3, 1)
    dataset = open_dataset(tmp_path, "train")
    rows = row_count(dataset.tokens, 1024)
    assert rows == 2_636_718
    last = (rows - 1) * 1024
    assert dataset.document_span(2)[0] < last < 2_700_000_000 - 1024
    assert len(dataset.read(last, last + 1025)) == 1025
    assert not len(dataset.boundaries(last, last + 1025))


def damage_cut(folder: Path) -> None:
    os.truncate(folder / "train/shard-00000.bin", 40 - 10)


def damage_missing(folder: Path) -> None:
    (folder / "train/shard-00000.len").unlink()


def damage_count(folder: Path) -> None:
    manifest = read_manifest(folder)
    splits = manifest.splits | {"train": replace(manifest.splits["train"], tokens=21)}
    write_manifest(folder, replace(manifest, splits=splits))


def damage_version(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("megaxf-tokens/1", "megaxf-tokens/9"))


def damage_json(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-30])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_cut, r"shard-00000\.bin: has 30 bytes, the manifest says 40"),
        (damage_missing, r"shard-00000\.len: is missing"),
        (damage_count, r"manifest\.json: train has 21 tokens, its shards 20"),
        (damage_version, r"manifest\.json: has format 'megaxf-tokens/9', and this version reads 'megaxf-tokens/1'"),
        (damage_json, r"manifest\.json: cannot be read as a manifest"),
    ],
)
def test_damage_is_named_at_the_start(tmp_path, damage, said):
    write(tmp_path / "set")
    damage(tmp_path / "set")
    with pytest.raises(DataError, match=said):
        check_sizes(tmp_path / "set", read_manifest(tmp_path / "set"), "train")


def test_what_is_no_data_set_is_named(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        open_dataset(tmp_path / "none", "train")
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_dataset(tmp_path, "train")
    write_documents(tmp_path / "set", {"train": [[1]]}, vocab_size=257, eod_id=EOD)
    with pytest.raises(DataError, match=r"has no validation split \(it has: train\)"):
        open_dataset(tmp_path / "set", "validation")


def test_verify_finds_a_flipped_byte_and_swapped_shards(tmp_path):
    folder = tmp_path / "set"
    documents = {"train": [[1, 2, 3], [4, 5, 6]]}
    write_documents(folder, documents, vocab_size=257, eod_id=EOD, shard_tokens=4)
    assert verify(folder) == 2 * (4 * 2 + 4 + 8)
    first, second = (folder / f"train/shard-0000{k}.bin" for k in (0, 1))
    kept = first.read_bytes()
    first.write_bytes(kept[:2] + b"\x07" + kept[3:])
    with pytest.raises(DataError, match=re.escape(f"{first}: MiB 0 (bytes 0 to 7) has hash")):
        verify(folder)
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    with pytest.raises(DataError, match=re.escape(f"{first}: has the content of shard-00001.bin")):
        verify(folder)


def test_verify_finds_a_forged_end_of_document(tmp_path):
    write(tmp_path / "set", [[1, EOD, 2]])
    with pytest.raises(DataError, match="end-of-document tokens elsewhere"):
        verify(tmp_path / "set")


def test_lengths_that_do_not_add_up_are_named(tmp_path):
    write(tmp_path / "set")
    np.array([2, 3, 4, 5, 7], LENGTH_DTYPE).tofile(tmp_path / "set/train/shard-00000.len")
    with pytest.raises(DataError, match="adds up to 21 tokens, the manifest says 20"):
        open_dataset(tmp_path / "set", "train").document(0)


def test_an_older_build_is_replaced_wholly_or_not_at_all(tmp_path):
    folder = tmp_path / "set"
    write(folder, shard_tokens=2)
    with pytest.raises(DataError, match="already holds a data set; use --overwrite"):
        write(folder)
    write(folder, overwrite=True)
    write(tmp_path / "fresh")
    assert files_of(folder).keys() == files_of(tmp_path / "fresh").keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "set"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="is not a data set, so it will not be replaced"):
        write(tmp_path / "home", overwrite=True)
    assert (tmp_path / "home/thesis.txt").read_text() == "years of work"


def test_a_failed_build_leaves_nothing_and_a_dead_one_is_cleared(tmp_path):
    folder = tmp_path / "set"
    with pytest.raises(RuntimeError), DatasetWriter(folder, vocab_size=257, eod_id=EOD) as writer:
        writer.add("train", np.array([1, EOD]), np.array([2]))
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    (tmp_path / "set.building/train").mkdir(parents=True)
    (tmp_path / "set.building/train/shard-00009.bin").write_bytes(b"left over")
    write(folder)
    assert "train/shard-00009.bin" not in files_of(folder)


def test_two_builds_of_one_name_do_not_mix(tmp_path):
    with DatasetWriter(tmp_path / "set", vocab_size=257, eod_id=EOD) as writer:
        with pytest.raises(DataError, match="another build is writing here"):
            write(tmp_path / "set")
        writer.add("train", np.array([1, EOD]), np.array([2]))
        writer.finish()
    assert open_dataset(tmp_path / "set", "train").tokens == 2


def test_the_manifest_reads_back_as_it_was_written(tmp_path):
    manifest = write(tmp_path / "set")
    assert read_manifest(tmp_path / "set") == manifest
    assert read_manifest(tmp_path / "set").digest == manifest.digest
    assert replace(read_manifest(tmp_path / "set"), name="other").digest != manifest.digest
    record = json.loads((tmp_path / "set/manifest.json").read_text())["splits"]["train"]
    assert (record["tokens"], record["documents"], record["longest"]) == (20, 5, 6)


def test_the_origin_of_each_document(tmp_path):
    origins = np.array([(1, 7), (0, 1 << 40), (UNKNOWN_FILE, 0), (2, 0), (0, 5)], ORIGIN_DTYPE)
    with DatasetWriter(tmp_path / "set", vocab_size=257, eod_id=EOD, shard_tokens=7) as writer:
        for document, origin in zip(DOCUMENTS, origins, strict=True):
            ids = np.array([*document, EOD])
            writer.add("train", ids, np.array([len(ids)]), origins=origin[None])
        manifest = writer.finish(origins=["a", "b"])
    assert (tmp_path / "set/train/shard-00000.org").stat().st_size == 24
    dataset = open_dataset(tmp_path / "set", "train")
    found = [dataset.origin(k) for k in (0, 1, 2, 4)]
    assert found == [("b", 7), ("a", 1 << 40), None, ("a", 5)]
    with pytest.raises(DataError, match=r"document 3 is from file 2, origins\.json has 2"):
        dataset.origin(3)
    for index in (-1, 5):
        with pytest.raises(DataError, match=f"documents 0 to 4, not {index}"):
            dataset.origin(index)
    assert manifest.origins_xxh3_128 and read_manifest(tmp_path / "set") == manifest
    write(tmp_path / "bare")
    assert open_dataset(tmp_path / "bare", "train").origin(0) is None


def test_origins_of_some_documents_only_are_refused(tmp_path):
    with DatasetWriter(tmp_path / "set", vocab_size=257, eod_id=EOD) as writer:
        writer.add("train", np.array([1, EOD]), np.array([2]), origins=np.zeros(1, ORIGIN_DTYPE))
        with pytest.raises(DataError, match="the origin is known of some documents and not of others"):
            writer.add("train", np.array([1, EOD]), np.array([2]))
    assert not list(tmp_path.iterdir())


def test_a_shard_has_its_names_only_when_it_is_whole(tmp_path):
    writer = ShardWriter(tmp_path, "shard-00000", np.dtype("<u2"))
    writer.write(np.array([1, EOD]), np.array([2]))
    assert {path.suffix for path in tmp_path.iterdir()} == {".part"}
    again = ShardWriter(tmp_path, "shard-00000", np.dtype("<u2"))  # after a kill
    again.write(np.array([3, EOD]), np.array([2]))
    assert again.close().tokens == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"shard-00000.{e}" for e in ("bin", "len", "xxh")]
    assert np.fromfile(tmp_path / "shard-00000.bin", "<u2").tolist() == [3, EOD]


def test_what_was_used_last_is_kept_up_to_a_size():
    sizes = [4, 4, 4, 4, 99]
    kept: Recent[list[int]] = Recent(10, len, lambda number: [number] * sizes[number])
    assert [kept[number] for number in range(3)] == [[0] * 4, [1] * 4, [2] * 4]
    assert list(kept) == [1, 2]
    assert kept[1] is kept[1]
    kept.drop(1)
    kept.drop(1)
    sizes[1] = 2
    assert kept[1] == [1, 1]
    assert kept[3] == [3] * 4
    assert list(kept) == [2, 1, 3]
    assert kept[4] == [4] * 99
    assert list(kept) == [4]


OPEN = """
import resource, sys
from data_pipeline.format.dataset import open_dataset
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
dataset = open_dataset(sys.argv[1], "train")
print(dataset.tokens, peak() - before)
try:
    dataset.read(dataset.tokens - 2, dataset.tokens)
except ValueError as error:
    print(error)
"""


def test_a_set_of_100_000_shards_opens_without_a_look_at_them(tmp_path):
    tokens = 150_000_000
    shards = tuple(
        Shard(f"shard-{k:05d}", tokens, 170_000, 2 * tokens, *(f"{k * 10 + j:032x}" for j in range(4)))
        for k in range(100_000)
    )
    split = Split(tokens * 100_000, 170_000 * 100_000, 9, 0, shards)
    write_manifest(tmp_path, Manifest("web", "uint16", 257, EOD, None, 0, {"train": split}))
    done = subprocess.run([sys.executable, "-c", OPEN, str(tmp_path)], capture_output=True, text=True, check=True)
    counted, fault = done.stdout.splitlines()
    assert counted.split()[0] == "15000000000000"
    assert int(counted.split()[1]) < 150
    assert fault.startswith(f"{tmp_path}/train/shard-99999.bin: is missing")

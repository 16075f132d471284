"""Every kind of damage to a shard folder is named by `verify`, all of it and exactly where."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from data_pipeline.errors import DataError
from data_pipeline.format.files import check_sizes
from data_pipeline.format.hashes import MIB, Hasher, hash_file
from data_pipeline.format.manifest import HASH_DTYPE, ORIGIN_DTYPE, read_manifest, write_manifest
from data_pipeline.format.place import Folder
from data_pipeline.format.verify import bytes_to_read, find_faults, verify
from data_pipeline.format.writer import DatasetWriter
from data_pipeline.stream.place import StoreFolder
from data_pipeline.stream.store import Store
from tests.data_pipeline.kit import EOD

SHARD_TOKENS = MIB + 5000
"""Two bytes a token: two MiB and a rest."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Four shards of random documents with origins, the first three of about 2 MiB."""
    random = np.random.default_rng(5)
    lengths = random.integers(2, 4000, 1800)
    ids = random.integers(0, 256, lengths.sum())
    ids[np.cumsum(lengths) - 1] = EOD
    origins = np.zeros(len(lengths), ORIGIN_DTYPE)
    origins["file"], origins["record"] = np.arange(len(lengths)) // 1000, np.arange(len(lengths)) % 1000
    with DatasetWriter(tmp_path / "set", vocab_size=257, eod_id=EOD, shard_tokens=SHARD_TOKENS) as writer:
        writer.add("train", ids, lengths, origins=origins)
        writer.finish(origins=["a.jsonl", "b.jsonl"])
    assert len(read_manifest(tmp_path / "set").splits["train"].shards) == 4
    return tmp_path / "set"


def faults(folder: Path) -> dict[str, list[str]]:
    """What is said of each file."""
    found: dict[str, list[str]] = {}
    for fault in find_faults(Folder(folder)).faults:
        found.setdefault(str(Path(fault.path).relative_to(folder)), []).append(fault.message)
    return found


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_the_hashes_are_those_of_xxhash(folder):
    shard = read_manifest(folder).splits["train"].shards[0]
    data = (folder / "train/shard-00000.bin").read_bytes()
    assert shard.bin_xxh3_128 == xxhash.xxh3_128_hexdigest(data)
    blocks = [xxhash.xxh3_64_intdigest(data[start : start + MIB]) for start in range(0, len(data), MIB)]
    assert np.fromfile(folder / "train/shard-00000.xxh", HASH_DTYPE).tolist() == blocks
    assert len(blocks) == 3
    hasher = Hasher()
    for start in range(0, len(data), 300_007):
        hasher.update(memoryview(data)[start : start + 300_007])
    assert hasher.result().blocks.tolist() == blocks == hash_file(folder / "train/shard-00000.bin").blocks.tolist()


def test_an_undamaged_set_is_read_to_the_last_byte(folder):
    heard: list[int] = []
    sizes = sum(path.stat().st_size for path in folder.glob("train/*"))
    assert verify(folder, heard.append) == sizes == sum(heard) == bytes_to_read(read_manifest(folder))
    for name in ("shard-00001.pack-2048", "pack-2048.json"):
        (folder / "train" / name).write_bytes(b"rows")
    assert faults(folder) == {}


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_flipped_byte_is_named_by_its_mib(folder, block):
    path = folder / "train/shard-00002.bin"
    last = min((block + 1) * MIB, path.stat().st_size) - 1
    flip(path, last)
    (message,) = faults(folder).pop("train/shard-00002.bin")
    assert message.startswith(f"MiB {block} (bytes {block * MIB} to {last}) has hash ")
    with pytest.raises(DataError, match=re.escape(f"{path}: MiB {block} (bytes")):
        verify(folder)


@pytest.mark.parametrize("ending", ["len", "xxh", "org"])
def test_a_flipped_byte_of_a_side_file(folder, ending):
    flip(folder / f"train/shard-00001.{ending}", 9)
    assert {name: len(found) for name, found in faults(folder).items()} == {f"train/shard-00001.{ending}": 1}


def test_all_faults_are_listed_not_only_the_first(folder):
    train = folder / "train"
    flip(train / "shard-00000.bin", 7)
    flip(train / "shard-00000.bin", 2 * MIB + 5)
    os.truncate(train / "shard-00001.bin", 1_000_000)
    (train / "shard-00002.len").unlink()
    (train / "shard-00004.bin").write_bytes(b"of an older build with more shards")
    flip(folder / "origins.json", 4)
    found = faults(folder)
    assert [message.split(" (")[0] for message in found["train/shard-00000.bin"]] == ["MiB 0", "MiB 2"]
    assert "has 1000000 bytes, the manifest says" in found["train/shard-00001.bin"][0]
    assert "is missing" in found["train/shard-00002.len"][0]
    assert "the manifest does not list it" in found["train/shard-00004.bin"][0]
    assert "has hash" in found["origins.json"][0]
    assert len(found) == 5
    with pytest.raises(DataError) as error:
        verify(folder)
    assert all(f"{folder}/{name}: " in str(error.value) for name in found)
    local, stored = (find_faults(place) for place in (Folder(folder), StoreFolder(f"file://{folder}")))
    assert stored.bytes == local.bytes
    assert stored.faults == [fault._replace(path=f"file://{fault.path}") for fault in local.faults]


def test_a_store_without_listings_is_asked_for_each_file(folder, monkeypatch):
    monkeypatch.setattr(Store, "sizes", lambda self, folder: None)
    (folder / "train/shard-00002.len").unlink()
    (fault,) = find_faults(StoreFolder(f"file://{folder}")).faults
    assert fault.path == f"file://{folder}/train/shard-00002.len"
    assert fault.message.startswith("is missing")


def test_swapped_shards_are_called_swapped(folder):
    first, last = folder / "train/shard-00000.bin", folder / "train/shard-00003.bin"
    first.rename(folder / "kept")
    last.rename(first)
    (folder / "kept").rename(last)
    found = faults(folder)
    for name, other in (("shard-00000", "shard-00003"), ("shard-00003", "shard-00000")):
        assert any(f"has the content of {other}.bin" in message for message in found[f"train/{name}.bin"])


def test_a_shard_that_is_gone_with_all_its_files(folder):
    for path in folder.glob("train/shard-00002.*"):
        path.unlink()
    assert sorted(faults(folder)) == [f"train/shard-00002.{ending}" for ending in ("bin", "len", "org", "xxh")]
    with pytest.raises(DataError) as error:
        check_sizes(folder, read_manifest(folder), "train")
    assert str(error.value).count("is missing") == 4


def test_a_long_list_of_faults_ends_with_a_count(folder):
    manifest = read_manifest(folder)
    shards = tuple(manifest.splits["train"].shards[0]._replace(name=f"shard-{k:05d}") for k in range(100, 130))
    counts = {"tokens": sum(shard.tokens for shard in shards), "documents": sum(shard.documents for shard in shards)}
    split = replace(manifest.splits["train"], shards=shards, **counts)
    with pytest.raises(DataError, match="and 100 more of 120 faults"):
        check_sizes(folder, replace(manifest, splits={"train": split}), "train")


def test_sizes_from_the_listing_of_a_store(folder):
    manifest = read_manifest(folder)
    listed = {path.name: path.stat().st_size for path in folder.glob("train/*")}
    check_sizes("s3://bucket/set", manifest, "train", listed)
    listed["shard-00001.org"] -= 12
    with pytest.raises(DataError, match=r"^s3://bucket/set/train/shard-00001\.org: has \d+ bytes"):
        check_sizes("s3://bucket/set", manifest, "train", listed)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"largest_id": 200}, "has token id 256"),
        ({"origins_xxh3_128": None}, "names file"),
        ({"eod_id": 255}, "end-of-document tokens elsewhere"),
    ],
)
def test_a_writer_that_lied_is_found_out(folder, lie, said):
    write_manifest(folder, replace(read_manifest(folder), **lie))
    found = faults(folder)
    assert len(found) == 4
    assert all(said in message for (message,) in found.values())

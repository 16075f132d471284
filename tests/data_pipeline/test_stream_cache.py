"""Reading through the cache gives what reading locally gives, whatever the store does, and damage is never used."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import orjson
import pytest
import xxhash

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.hashes import MIB
from data_pipeline.format.manifest import ORIGIN_DTYPE
from data_pipeline.format.writer import DatasetWriter, write_documents
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import DamageError
from tests.data_pipeline.faulty_store import build_set, in_cache, open_faulty, reads


@pytest.fixture
def folder(tmp_path):
    """Five shards of 6,000 bytes."""
    build_set(tmp_path / "set", 5)
    return tmp_path / "set"


def assert_equal(ours, local):
    """All tokens, random stretches of them, all documents and boundaries."""
    assert np.array_equal(ours.read(0, ours.tokens), local.read(0, local.tokens))
    random = np.random.default_rng(0)
    for start, stop in np.sort(random.choice(ours.tokens, (50, 2), replace=False), axis=1).tolist():
        assert np.array_equal(ours.read(start, stop), local.read(start, stop))
        assert np.array_equal(ours.boundaries(start, stop), local.boundaries(start, stop))
    for index in range(ours.documents):
        assert np.array_equal(ours.document(index), local.document(index))
        assert ours.origin(index) == local.origin(index)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("faults", [{}, {"fail_every": 3}, {"short_every": 4}, {"fail_every": 3, "short_every": 5}])
def test_equals_local_reading(faults, ahead, folder, tmp_path):
    ours, local = open_faulty(folder, tmp_path / "cache", **faults), open_dataset(folder, "train")
    if ahead:
        ours.need(range(5))
    ours.check_sizes()
    assert_equal(ours, local)
    ours.files.close()


def test_a_byte_wrong_once_is_fetched_again(folder, tmp_path):
    flip = {f"shard-00001.{ending}": 1 for ending in ("bin", "len", "xxh")}
    ours = open_faulty(folder, tmp_path / "cache", flip=flip, log=str(tmp_path / "log"))
    assert_equal(ours, open_dataset(folder, "train"))
    again = {name for (name, _), count in reads(tmp_path / "log").items() if count == 2}
    assert again == set(flip)


def test_damage_in_the_store_is_named_and_never_kept(tmp_path):
    write_documents(tmp_path / "set", {"train": [[1] * 2_000_000]}, vocab_size=300, eod_id=256)
    path = tmp_path / "set/train/shard-00000.bin"
    data = bytearray(path.read_bytes())
    expected = xxhash.xxh3_64_hexdigest(bytes(data[2 * MIB : 3 * MIB]))
    data[2 * MIB + 77] ^= 4
    path.write_bytes(data)
    found = xxhash.xxh3_64_hexdigest(bytes(data[2 * MIB : 3 * MIB]))
    ours = open_faulty(tmp_path / "set", tmp_path / "cache")
    with pytest.raises(DamageError) as error:
        ours.read(0, 10)
    for part in (f"faulty://{path}", "MiB 2 ", f"xxh3_64 {found}, expected {expected}", "4 tries"):
        assert part in str(error.value)
    assert set(in_cache(tmp_path / "cache")) == {"shard-00000.xxh"}
    assert len(ours.document_ends(0)) == 1


@pytest.mark.parametrize("ending", ["len", "xxh"])
def test_damage_beside_the_tokens_is_named(ending, folder, tmp_path):
    ours = open_faulty(folder, tmp_path / "cache", flip={f"shard-00002.{ending}": 99})
    with pytest.raises(
        DamageError, match=rf"shard-00002\.{ending}: .*xxh3_128 [0-9a-f]{{32}}, expected [0-9a-f]{{32}}"
    ):
        ours.document_ends(2), ours.shard_tokens(2)
    assert f"shard-00002.{ending}" not in in_cache(tmp_path / "cache")


def test_a_missing_and_a_cut_shard_are_named(folder, tmp_path):
    (folder / "train/shard-00001.bin").unlink()
    (folder / "train/shard-00003.bin").write_bytes(bytes(100))
    ours = open_faulty(folder, tmp_path / "cache")
    with pytest.raises(DataError, match=r"shard-00001\.bin: is missing(.|\n)*shard-00003\.bin: has 100 bytes"):
        ours.check_sizes()
    with pytest.raises(DamageError, match=r"shard-00001\.bin: is missing in the store"):
        ours.shard_tokens(1)
    with pytest.raises(DamageError, match=r"shard-00003\.bin: .* 100 bytes came instead of bytes 0 to 6000"):
        ours.shard_tokens(3)


def test_the_second_run_finds_the_files_of_the_first_and_checks_them(folder, tmp_path):
    first = open_faulty(folder, tmp_path / "cache")
    assert_equal(first, open_dataset(folder, "train"))
    first.files.close()
    damaged = next((tmp_path / "cache").glob("*/train/shard-00002.bin"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    second = open_faulty(folder, tmp_path / "cache", log=str(tmp_path / "log"))
    assert_equal(second, open_dataset(folder, "train"))
    assert set(reads(tmp_path / "log")) == {("manifest.json", "0"), ("shard-00002.bin", "0")}


def test_another_version_of_a_data_set_never_mixes(folder, tmp_path):
    assert_equal(open_faulty(folder, tmp_path / "cache"), open_dataset(folder, "train"))
    build_set(tmp_path / "other", 5, seed=1)
    folder.rename(tmp_path / "old")
    (tmp_path / "other").rename(folder)
    assert_equal(open_faulty(folder, tmp_path / "cache"), open_dataset(folder, "train"))
    assert len(list((tmp_path / "cache").glob("[!.]*"))) == 2  # the files of the first are all still there


def test_origins_come_with_the_data_set(tmp_path):
    write = {"vocab_size": 257, "eod_id": 256, "shard_tokens": 5}
    with DatasetWriter(tmp_path / "set", **write) as writer:
        for number in range(4):
            origins = np.asarray([(number % 2, 10 + number)], ORIGIN_DTYPE)
            writer.add("train", np.asarray([1, 2, 256]), np.asarray([3]), origins=origins)
        writer.finish(origins=["a.jsonl", "b.jsonl"])
    ours = open_faulty(tmp_path / "set", tmp_path / "cache", flip={"origins.json": 1, "shard-00002.org": 1})
    assert [ours.origin(number) for number in range(4)] == [
        ("a.jsonl", 10), ("b.jsonl", 11), ("a.jsonl", 12), ("b.jsonl", 13)
    ]  # fmt: skip


def test_files_beside_the_shards(folder, tmp_path):
    ours = open_faulty(folder, tmp_path / "cache")
    (folder / "notes.json").write_bytes(b"[]")
    assert ours.files.common("notes.json").read_bytes() == b"[]"
    # A pack index is in the store, or made here; it belongs to no manifest.
    (folder / "train/shard-00001.pack-16").write_bytes(b"packed")
    assert ours.files.path(1, "pack-16").read_bytes() == b"packed"
    with pytest.raises(DamageError, match=r"shard-00002\.pack-16: is missing"):
        ours.files.path(2, "pack-16")
    ours.files.place("train/shard-00002.pack-16").write_bytes(b"made here")
    assert ours.files.path(2, "pack-16").read_bytes() == b"made here"
    (folder / "train/pack-16.json").write_bytes(b"{}")
    assert ours.files.common("train/pack-16.json").read_bytes() == b"{}"


def skipping(folder, tmp_path, **faults):
    return open_faulty(folder, tmp_path / "cache", on_damage="skip", quarantine=tmp_path / "run/quarantine", **faults)


def test_skip_takes_a_damaged_shard_out_of_the_run(folder, tmp_path):
    local = open_dataset(folder, "train")
    expected = local.read(0, local.tokens).copy()
    expected[3000:6000] = 256
    ours = skipping(folder, tmp_path, flip={"shard-00001.bin": 99})
    assert not ours.files.out
    assert np.array_equal(ours.read(0, ours.tokens), expected)
    assert ours.files.out == {1}
    # Documents stay where they are: rows keep their numbers.
    assert np.array_equal(ours.boundaries(0, ours.tokens), local.boundaries(0, local.tokens))
    (record,) = (tmp_path / "run/quarantine").iterdir()
    found = orjson.loads(record.read_bytes())
    assert (found["shard"], found["tokens"], found["split"]) == ("shard-00001", 3000, "train")
    assert "xxh3_64" in found["reason"]


def test_a_shard_once_out_stays_out_for_every_rank_of_the_next_start(folder, tmp_path):
    skipping(folder, tmp_path, flip={"shard-00003.bin": 99}).shard_tokens(3)
    healed = skipping(folder, tmp_path, log=str(tmp_path / "log"))
    assert healed.files.out == {3}
    assert (healed.shard_tokens(3) == 256).all()
    assert set(reads(tmp_path / "log")) == {("manifest.json", "0")}
    build_set(tmp_path / "other", 5, seed=1)
    assert not skipping(tmp_path / "other", tmp_path).files.out


def test_skip_does_not_cover_failures_of_the_store_or_of_lengths(folder, tmp_path):
    ours = skipping(folder, tmp_path, flip={"shard-00001.len": 99})
    with pytest.raises(DamageError, match=r"shard-00001\.len"):
        ours.document_ends(1)
    ours.files._store._files.fail_every = 1
    with pytest.raises(DataError, match="ConnectionResetError"):
        ours.shard_tokens(2)
    assert not (tmp_path / "run").exists()


def test_bad_requests_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match="name a cache folder"):
        open_dataset(f"faulty://{folder}", "train")
    with pytest.raises(DataError, match=r"is not a data set: no manifest\.json"):
        open_faulty(tmp_path / "nothing", tmp_path / "cache")
    with pytest.raises(DataError, match="has no validation split"):
        open_faulty(folder, tmp_path / "cache", split="validation")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be used as a cache"):
        open_faulty(folder, tmp_path / "file")
    with pytest.raises(DataError, match='"skip" needs a quarantine folder'):
        CacheOptions(tmp_path, on_damage="skip")
    with pytest.raises(DataError, match="on_damage = 'ignore'"):
        CacheOptions(tmp_path, on_damage="ignore")
    with pytest.raises(DataError, match="limit_bytes = 0"):
        CacheOptions(tmp_path, limit_bytes=0)


def test_reading_over_http(folder, tmp_path):
    """A plain server: no listings, and no ranges, which a file below 8 MiB does not need."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ours = open_dataset(f"http://127.0.0.1:{server.server_port}/set", "train", CacheOptions(tmp_path / "cache"))
        ours.check_sizes()
        assert_equal(ours, open_dataset(folder, "train"))
        server.shutdown()

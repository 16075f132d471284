"""A data set behind the S3 protocol on loopback, read by two ranks of a node through one bounded cache."""

import json
import multiprocessing
import time

import fsspec
import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import DamageError
from launch.megaxf import main
from tests.data_pipeline.faulty_store import QUICK, build_set, in_cache

SHARDS, SHARD_TOKENS = 6, 700_000
LIMIT = 3 * (SHARD_TOKENS * 2 + 100)


def options(cache, endpoint):
    return CacheOptions(cache, LIMIT, retries=QUICK, storage_options={"endpoint_url": endpoint})


def put(folder, endpoint):
    """Copies a folder to s3://tokens/web."""
    store = fsspec.filesystem("s3", endpoint_url=endpoint, skip_instance_cache=True)
    store.mkdir("tokens")
    store.put(str(folder), "tokens/web", recursive=True)
    return store


def rank(number, folder, cache, endpoint, results):
    """Reads the rows of its half of each batch of 8, as ranks do, needing other shards from batch to batch."""
    local, ours = open_dataset(folder, "train"), open_dataset("s3://tokens/web", "train", options(cache, endpoint))
    random = np.random.default_rng(7)
    batches = [np.sort(random.choice(SHARDS, 2, replace=False)) for _ in range(12)]
    for step, batch in enumerate(batches):
        ours.need([int(shard) for later in batches[step:] for shard in later], now=2)
        starts = np.repeat(batch, 4)[number::2] * SHARD_TOKENS + random.integers(0, SHARD_TOKENS - 2049, 8)[number::2]
        for start in starts.tolist():
            assert np.array_equal(ours.read(start, start + 2049), local.read(start, start + 2049))
            assert np.array_equal(ours.boundaries(start, start + 2049), local.boundaries(start, start + 2049))
    ours.files.close()
    results.put(number)


def test_two_ranks_read_s3_through_one_bounded_cache(endpoint, tmp_path):
    build_set(tmp_path / "set", SHARDS, SHARD_TOKENS)
    put(tmp_path / "set", endpoint)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(
            target=rank, args=(number, tmp_path / "set", tmp_path / "cache", endpoint, results), daemon=True
        )
        for number in range(2)
    ]
    most = 0
    for process in ranks:
        process.start()
    while any(process.is_alive() for process in ranks):
        most = max(most, sum(in_cache(tmp_path / "cache").values()))
        time.sleep(0.01)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert sorted(results.get(timeout=60) for _ in ranks) == [0, 1]
    assert 2 * SHARD_TOKENS < most <= LIMIT


def test_faults_of_s3_are_named(endpoint, tmp_path):
    build_set(tmp_path / "set", 3, 3000)
    store = put(tmp_path / "set", endpoint)
    data = bytearray(store.cat_file("tokens/web/train/shard-00001.bin"))
    data[5] ^= 1
    store.pipe_file("tokens/web/train/shard-00001.bin", bytes(data))
    store.pipe_file("tokens/web/train/shard-00002.bin", bytes(data[:-100]))
    store.rm_file("tokens/web/train/shard-00000.len")
    ours = open_dataset("s3://tokens/web", "train", options(tmp_path / "cache", endpoint))
    with pytest.raises(DataError, match=r"shard-00000\.len: is missing(.|\n)*shard-00002\.bin: has 5900 bytes"):
        ours.check_sizes()
    with pytest.raises(DamageError, match=r"s3://tokens/web/train/shard-00001\.bin: .*MiB 0 has xxh3_64"):
        ours.shard_tokens(1)
    with pytest.raises(DamageError, match=r"s3://tokens/web/train/shard-00002\.bin: "):
        ours.shard_tokens(2)
    with pytest.raises(DamageError, match=r"s3://tokens/web/train/shard-00000\.len: is missing"):
        ours.document_ends(0)
    with pytest.raises(DataError, match=r"s3://tokens/other: is not a data set"):
        open_dataset("s3://tokens/other", "train", options(tmp_path / "cache", endpoint))
    with pytest.raises(DataError, match=r"s3://nowhere: is not a data set"):
        open_dataset("s3://nowhere", "train", options(tmp_path / "cache", endpoint))


def test_missing_credentials_are_said_at_once(endpoint, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it was asked again"))
    with pytest.raises(DataError, match=r"may not be read \(NoCredentialsError"):
        open_dataset("s3://tokens/private", "train", options(tmp_path / "cache", endpoint))


def test_inspect_and_verify_of_a_set_in_s3(endpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    build_set(tmp_path / "set", 3, 3000)
    store = put(tmp_path / "set", endpoint)
    assert main(["data", "inspect", "s3://tokens/web", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["data", "inspect", str(tmp_path / "set"), "--json"]) == 0
    local = json.loads(capsys.readouterr().out)
    assert said["splits"] == local["splits"]
    assert main(["data", "verify", "s3://tokens/web"]) == 0
    assert "every hash agrees" in capsys.readouterr().out
    data = bytearray(store.cat_file("tokens/web/train/shard-00001.bin"))
    data[5] ^= 1
    store.pipe_file("tokens/web/train/shard-00001.bin", bytes(data))
    assert main(["data", "verify", "s3://tokens/web"]) == 2
    assert "s3://tokens/web/train/shard-00001.bin: MiB 0 (bytes 0 to" in capsys.readouterr().err

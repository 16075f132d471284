"""A store is asked again when it fails, and its answers are measured."""

import time

import fsspec
import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.stream.store import DamageError, Retries, Store, is_url
from tests.data_pipeline.faulty_store import QUICK


def store_with(tmp_path, data: bytes, name="x.bin", **faults) -> Store:
    (tmp_path / name).write_bytes(data)
    return Store(f"faulty://{tmp_path}", faults, QUICK)


@pytest.mark.parametrize("protocol", ["memory", "file", "faulty"])
def test_any_range_of_any_store(protocol, tmp_path):
    data = np.random.default_rng(1).bytes(5000)
    folder = "/store-test" if protocol == "memory" else str(tmp_path)
    with fsspec.open(f"{protocol.replace('faulty', 'file')}://{folder}/deep/x.bin", "wb", auto_mkdir=True) as file:
        file.write(data)
    store = Store(f"{protocol}://{folder}/")
    assert store.read("deep/x.bin") == data
    for start, stop in np.sort(np.random.default_rng(2).choice(5001, (20, 2), replace=False), axis=1).tolist():
        assert store.read("deep/x.bin", start, stop) == data[start:stop]
    assert store.size("deep/x.bin") == 5000
    assert store.sizes("deep") == {"x.bin": 5000}


def test_failures_and_short_answers_pass_by(tmp_path):
    data = np.random.default_rng(3).bytes(9999)
    store = store_with(tmp_path, data, fail_every=3, short_every=4)
    assert b"".join(store.read("x.bin", start, start + 99) for start in range(0, 9999, 99)) == data
    assert store._files.reads > 150


def test_a_store_that_never_answers_is_named_with_its_last_reason(tmp_path):
    with pytest.raises(
        DataError, match=r"faulty://.*/x\.bin: .* in 4 tries, .*ConnectionResetError: .* read 4"
    ) as found:
        store_with(tmp_path, b"abc", fail_every=1).read("x.bin")
    assert not isinstance(found.value, DamageError)


def test_content_that_stays_short_or_wrong_is_damage(tmp_path):
    with pytest.raises(DamageError, match="50 bytes came instead of bytes 0 to 100"):
        store_with(tmp_path, bytes(100), short_every=1).read("x.bin", 0, 100)
    with pytest.raises(DamageError, match="4 tries, the last reason: it is odd"):
        store_with(tmp_path, bytes(100)).read("x.bin", fault=lambda data: "it is odd")


def test_a_missing_file_is_not_asked_for_again(tmp_path):
    store = store_with(tmp_path, b"")
    with pytest.raises(DamageError, match=r"y\.bin: is missing"):
        store.read("y.bin")
    assert store._files.reads == 1


def test_refused_credentials_are_said_at_once(tmp_path, monkeypatch):
    store, asked = store_with(tmp_path, b""), []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise PermissionError("forbidden")

    monkeypatch.setattr(store._files, "cat_file", refuse)
    with pytest.raises(DataError, match="credentials"):
        store.read("x.bin")
    assert len(asked) == 1


def test_waits_double_up_to_a_bound_and_differ(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    store = store_with(tmp_path, b"abc", fail_every=1)
    store._retries = Retries(attempts=8, first_wait=1.0, longest_wait=10.0)
    waits.clear()
    with pytest.raises(DataError):
        store.read("x.bin")
    # The store's own delay of 0 is logged too.
    longest = [1, 2, 4, 8, 10, 10, 10]
    waits = [wait for wait in waits if wait]
    assert len(waits) == 7
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, longest, strict=True))
    assert len({wait / bound for wait, bound in zip(waits, longest, strict=True)}) == 7


def test_what_cannot_be_opened():
    with pytest.raises(DataError, match=r"nonsense://bucket: cannot be opened"):
        Store("nonsense://bucket")


def test_stores_without_listings_say_so():
    assert Store("http://localhost:1/x").sizes("train") is None


def test_urls():
    assert is_url("s3://bucket/a") and is_url("memory://a")
    assert not is_url("/data/a") and not is_url("a:b")

"""The limit of a cache is kept at all times, what is needed last goes first, and processes share what they fetch."""

import errno
import multiprocessing
import os
import re
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.stream import cache, fetch
from data_pipeline.stream.room import Room
from tests.data_pipeline.faulty_store import build_set, in_cache, open_faulty, reads

SHARD = 6000 + 12 + 8
"""Bytes of .bin, .len and .xxh of each shard here; with three documents of known origin it would be 36 more."""


@pytest.fixture
def folder(tmp_path):
    build_set(tmp_path / "set", 8)
    return tmp_path / "set"


def bins(cache) -> list[int]:
    """Numbers of the shards whose tokens are in the cache."""
    return sorted(int(name[6:11]) for name in in_cache(cache) if name.endswith(".bin"))


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def without_thread(dataset):
    """Announces needs only: nothing is fetched ahead."""
    dataset.files._ahead.want = lambda wanted: None
    return dataset


def read_shards(dataset, *shards):
    for shard in shards:
        dataset.document_ends(shard)
        dataset.shard_tokens(shard)


def test_what_is_needed_furthest_in_the_future_goes_first(folder, tmp_path):
    ours = without_thread(open_faulty(folder, tmp_path / "cache", limit_bytes=4 * SHARD))
    ours.need([0, 3, 2, 1, 4])
    read_shards(ours, 0, 1, 2, 3)
    assert bins(tmp_path / "cache") == [0, 1, 2, 3]
    ours.need([3, 4, 2, 1])
    read_shards(ours, 4)
    assert bins(tmp_path / "cache") == [1, 2, 3, 4]  # 0 is not needed any more
    ours.need([5, 3, 4, 2, 1])
    read_shards(ours, 5)
    assert bins(tmp_path / "cache") == [2, 3, 4, 5]  # 1 is needed after all others


def test_without_announced_needs_the_longest_unused_goes_first(folder, tmp_path):
    ours = open_faulty(folder, tmp_path / "cache", limit_bytes=3 * SHARD)
    read_shards(ours, 0, 1, 2)
    for age, shard in enumerate((1, 0, 2)):
        for path in (tmp_path / "cache").glob(f"*/train/shard-0000{shard}.*"):
            os.utime(path, (age, age))
    read_shards(ours, 3)
    assert bins(tmp_path / "cache") == [0, 2, 3]


def test_ahead_brings_the_next_and_drops_nothing_that_is_needed_sooner(folder, tmp_path):
    ours = open_faulty(folder, tmp_path / "cache", limit_bytes=3 * SHARD + 100, log=str(tmp_path / "log"))
    ours.need([7, 5, 6, 4, 3, 2, 1])
    wait_for(lambda: bins(tmp_path / "cache") == [5, 6, 7])
    ours.need([6, 4, 3, 2, 1])
    wait_for(lambda: bins(tmp_path / "cache") == [3, 4, 6])
    time.sleep(1.5)  # it has looked for room again meanwhile
    ours.files.close()
    assert bins(tmp_path / "cache") == [3, 4, 6]
    assert {name for name, _ in reads(tmp_path / "log") if name.endswith("bin")} == {
        f"shard-0000{shard}.bin" for shard in (7, 5, 6, 4, 3)
    }
    assert set(reads(tmp_path / "log").values()) == {1}


def test_ahead_stops_at_its_own_bytes(folder, tmp_path):
    ours = open_faulty(folder, tmp_path / "cache", ahead_bytes=2 * SHARD)
    ours.need([0, 1, 2, 3, 4])
    wait_for(lambda: bins(tmp_path / "cache") == [0, 1, 2])
    ours.files.close()
    assert bins(tmp_path / "cache") == [0, 1, 2]


def test_needs_of_other_readers_count_until_these_close(folder, tmp_path):
    ours, other = (without_thread(open_faulty(folder, tmp_path / "cache", limit_bytes=3 * SHARD)) for _ in range(2))
    read_shards(ours, 0, 1)
    other.need([0], now=1)
    ours.need([2, 3, 1])
    read_shards(ours, 2)
    read_shards(ours, 3)
    assert bins(tmp_path / "cache") == [0, 2, 3]
    other.files.close()
    ours.need([4, 2, 3])
    read_shards(ours, 4)
    assert bins(tmp_path / "cache") == [2, 3, 4]


def test_maps_of_what_is_no_longer_needed_are_let_go(folder, tmp_path):
    ours = without_thread(open_faulty(folder, tmp_path / "cache", limit_bytes=2 * SHARD))
    ours.need([0, 1])
    kept = ours.shard_tokens(0)[:]
    ours.need([1, 2])
    assert 0 not in ours.maps
    read_shards(ours, 1, 2)
    assert bins(tmp_path / "cache") == [1, 2]
    # Whoever still holds the map of a dropped file reads it undisturbed.
    assert np.array_equal(kept, open_dataset(folder, "train").shard_tokens(0))


def test_limits_that_are_too_small_are_said(folder, tmp_path):
    with pytest.raises(DataError, match=f"limit_bytes = 100 .* the 1 shards .* have {SHARD} bytes"):
        open_faulty(folder, tmp_path / "cache", limit_bytes=100)
    ours, other = (without_thread(open_faulty(folder, tmp_path / "cache", limit_bytes=3 * SHARD)) for _ in range(2))
    with pytest.raises(DataError, match=f"limit_bytes = {3 * SHARD} .* the 4 shards .* have {4 * SHARD} bytes"):
        ours.need(range(8), now=4)
    other.need([0, 1], now=2)
    read_shards(other, 0, 1)
    ours.need([2, 3], now=2)
    read_shards(ours, 2)
    with pytest.raises(DataError, match=f"{3 * SHARD} bytes are in use by the batches of this node"):
        read_shards(ours, 3)


def test_a_full_disk_drops_more_then_is_named(folder, tmp_path, monkeypatch):
    ours = without_thread(open_faulty(folder, tmp_path / "cache"))
    write, room = os.pwrite, 4 * SHARD

    def pwrite(handle, data, offset):
        if sum(in_cache(tmp_path / "cache").values()) > room:
            write(handle, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, offset)

    monkeypatch.setattr(fetch.os, "pwrite", pwrite)
    ours.need([0, 1, 2, 3, 4, 5])
    read_shards(ours, 0, 1, 2, 3, 4)
    assert bins(tmp_path / "cache") == [0, 1, 2, 4]
    assert np.array_equal(ours.shard_tokens(4), open_dataset(folder, "train").shard_tokens(4))
    room = 0
    with pytest.raises(DataError) as error:
        read_shards(ours, 5)
    free = re.search(
        rf"disk of the cache folder {tmp_path}/cache is full: \d+ bytes are needed, (\d+) are free", str(error.value)
    )
    assert free and int(free[1]) > 0
    assert not [name for name in in_cache(tmp_path / "cache") if name.startswith("shard-00005")]


def test_a_disk_that_refuses_the_reservation_is_full_too(folder, tmp_path, monkeypatch):
    ours = without_thread(open_faulty(folder, tmp_path / "cache"))
    read_shards(ours, 0, 1)
    allocate, refused = os.posix_fallocate, []

    def refuse_once(handle, offset, size):
        if size == 6000 and not refused:
            refused.append(size)
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse_once)
    read_shards(ours, 2)
    assert bins(tmp_path / "cache") == [1, 2]


def test_the_limit_holds_after_every_change(folder, tmp_path, monkeypatch):
    """Each reader in turn reads at random, with another announced order each time; all changes are measured."""
    limit, most = 4 * SHARD + 3000, []
    for name in ("reserve", "settle"):
        original = getattr(Room, name)

        def measured(*args, original=original, **kwargs):
            try:
                return original(*args, **kwargs)
            finally:
                most.append(sum(in_cache(tmp_path / "cache").values()))

        monkeypatch.setattr(Room, name, measured)
    readers = [open_faulty(folder, tmp_path / "cache", limit_bytes=limit, ahead_bytes=2 * SHARD) for _ in range(2)]
    local, random = open_dataset(folder, "train"), np.random.default_rng(5)
    for _ in range(40):
        for reader in readers:
            order = random.permutation(8).tolist()
            reader.need(order)
            assert np.array_equal(reader.shard_tokens(order[0]), local.shard_tokens(order[0]))
    for reader in readers:
        reader.files.close()
    assert len(most) > 100
    assert 2 * SHARD < max(most) <= limit


def read_in_process(folder, cache, log, limit, seed, barrier):
    """A rank: reads every shard in an order of its own, ahead of need, and compares."""
    local = open_dataset(folder, "train")
    ours = open_faulty(folder, cache, limit_bytes=limit, log=str(log), delay=0.01)
    order = np.random.default_rng(seed).permutation(8).tolist()
    barrier.wait()
    for step in range(8):
        ours.need(order[step:])
        assert np.array_equal(ours.shard_tokens(order[step]), local.shard_tokens(order[step]))
        ours.document_ends(order[step])
    ours.files.close()


def run_ranks(*arguments) -> list[int]:
    """Runs two ranks to their end; gives the bytes in the cache as seen again and again meanwhile."""
    context = multiprocessing.get_context("spawn")
    barrier, sizes = context.Barrier(2), []
    ranks = [context.Process(target=read_in_process, args=(*arguments, seed, barrier)) for seed in range(2)]
    for rank in ranks:
        rank.start()
    while any(rank.is_alive() for rank in ranks):
        sizes.append(sum(in_cache(arguments[1]).values()))
        time.sleep(0.003)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return sizes


def test_two_processes_fetch_each_file_once(folder, tmp_path):
    run_ranks(folder, tmp_path / "cache", tmp_path / "log", 1 << 30)
    found = reads(tmp_path / "log")
    assert found.pop(("manifest.json", "0")) == 2
    assert len(found) == 24
    assert set(found.values()) == {1}
    assert len({line.split()[2] for line in (tmp_path / "log").read_text().splitlines()[2:]}) == 2
    assert not list((tmp_path / "cache/.needs").iterdir())


def test_two_processes_keep_the_limit_together(folder, tmp_path):
    limit = 4 * SHARD
    sizes = run_ranks(folder, tmp_path / "cache", tmp_path / "log", limit)
    assert 2 * SHARD < max(sizes) <= limit


@contextmanager
def telling(results):
    """Tells the test how a rank ended."""
    try:
        yield
        results.put("done")
    except DataError as error:
        results.put(str(error))


def read_then_move_on(folder, cache, first, then, met, go_on, results):
    """A rank: uses two shards until it is told to go on to two others."""
    ours = without_thread(open_faulty(folder, cache, limit_bytes=3 * SHARD))
    with telling(results):
        for shards in (first, then):
            ours.need(shards, now=2)
            read_shards(ours, *shards)
            met.wait(60)
            go_on.wait(60)
    ours.files.close()


def test_a_rank_waits_for_room_that_another_rank_will_leave(folder, tmp_path):
    """A rank that is a batch ahead of another needs shards while the other still uses those before."""
    context = multiprocessing.get_context("spawn")
    met, go_on, results = context.Barrier(2), context.Event(), context.Queue()
    arguments = (folder, tmp_path / "cache", [0, 1], [2, 3], met, go_on, results)
    other = context.Process(target=read_then_move_on, args=arguments, daemon=True)
    other.start()
    met.wait(60)
    ours = without_thread(open_faulty(folder, tmp_path / "cache", limit_bytes=3 * SHARD))
    ours.need([2, 3], now=2)
    read = []
    reading = threading.Thread(target=lambda: read.append(read_shards(ours, 2, 3)))
    reading.start()
    wait_for(lambda: bins(tmp_path / "cache") == [0, 1, 2])
    reading.join(2 * cache._SURE)
    assert reading.is_alive()
    go_on.set()
    reading.join(60)
    assert len(read) == 1, "it did not wait"
    met.wait(60)
    assert results.get(timeout=60) == "done"
    assert bins(tmp_path / "cache")[-2:] == [2, 3]


def read_one_then_all(folder, cache, shards, met, results):
    """A rank: has one of its shards when the other has one of its own."""
    ours = without_thread(open_faulty(folder, cache, limit_bytes=3 * SHARD))
    ours.need(shards, now=3)
    read_shards(ours, shards[0])
    met.wait(60)
    with telling(results):
        read_shards(ours, *shards)
    ours.files.close()


def test_ranks_that_all_wait_for_room_say_that_it_is_too_small(folder, tmp_path):
    context = multiprocessing.get_context("spawn")
    met, results = context.Barrier(2), context.Queue()
    ranks = [
        context.Process(target=read_one_then_all, args=(folder, tmp_path / "cache", shards, met, results), daemon=True)
        for shards in ([0, 1, 2], [3, 4, 5])
    ]
    for rank in ranks:
        rank.start()
    said = [results.get(timeout=120) for _ in ranks]
    for rank in ranks:
        rank.join()
    assert any("bytes are in use by the batches of this node's processes" in message for message in said), said


def fetch_and_die(folder, cache):
    ours = open_faulty(folder, cache, kill_at=4)
    ours.need([0, 1, 2])
    ours.shard_tokens(0)
    ours.shard_tokens(1)


def test_a_killed_process_leaves_nothing_that_is_taken_as_whole(folder, tmp_path):
    """Killed in the fourth read (manifest, two files of the first shard): with a .part of full size on the disk."""
    rank = multiprocessing.get_context("spawn").Process(target=fetch_and_die, args=(folder, tmp_path / "cache"))
    rank.start()
    rank.join()
    assert rank.exitcode == -signal.SIGKILL
    left = in_cache(tmp_path / "cache")
    parts = [name for name in left if name.endswith(".part")]
    assert parts
    assert list((tmp_path / "cache/.needs").iterdir())
    ours = open_faulty(folder, tmp_path / "cache", limit_bytes=2 * SHARD)
    local = open_dataset(folder, "train")
    # Neither what it was fetching nor what it had announced takes room any more.
    for shard in (5, 6, 7):
        assert np.array_equal(ours.shard_tokens(shard), local.shard_tokens(shard))
    assert not [name for name in in_cache(tmp_path / "cache") if name.endswith(".part")]
    assert len(list((tmp_path / "cache/.needs").iterdir())) == 1
    assert np.array_equal(ours.read(0, ours.tokens), local.read(0, local.tokens))


def test_threads_of_a_process_share_too(folder, tmp_path):
    ours, local = open_faulty(folder, tmp_path / "cache", log=str(tmp_path / "log")), open_dataset(folder, "train")
    wrong = []

    def read():
        if not np.array_equal(ours.read(0, ours.tokens), local.read(0, local.tokens)):
            wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert set(reads(tmp_path / "log").values()) == {1}

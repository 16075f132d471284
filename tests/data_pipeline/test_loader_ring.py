"""Batches that a thread reads ahead: the same ones, whole until they are given back, and errors where they belong."""

from __future__ import annotations

import threading
from itertools import count

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.loader.ring import Request, Ring
from data_pipeline.loader.share import DataShare
from data_pipeline.rows.batch import Batch
from tests.data_pipeline.test_loader import batches, write

SECONDS = 20
"""After which a thread that should have moved has failed to."""


class Numbers:
    """Rows that hold the number of their sample; fails at one of them, and waits at another until it is let on."""

    isolate_documents = False

    def __init__(self, fails: int = -1, waits: int = -1):
        self.fails, self.waits = fails, waits
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.read: list[int] = []
        self.buffers: list[int] = []

    def rows(self, first_sample, count, out=None):
        if first_sample == self.waits:
            self.reached.set()
            assert self.go_on.wait(SECONDS)
        if first_sample == self.fails:
            raise DataError("is damaged", "shard-00000.bin")
        out.block[:] = first_sample
        self.buffers.append(id(out))
        self.read.append(first_sample)
        return out.finish()


def requests(start: int = 0, stop: int | None = None):
    """Batches of one row; the end of a short list, or none."""
    numbers = count(start) if stop is None else range(start, stop)
    return (Request(number, 1, 4) for number in numbers)


def settled(ring: Ring, source: Numbers, number: int) -> None:
    """Waits until so many batches are read, and a while in which no more must come."""
    for _ in range(SECONDS * 100):
        if len(source.read) >= number:
            break
        threading.Event().wait(0.01)
    ring._thread.join(0.1)
    assert len(source.read) == number


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_slow_consumer_finds_its_rows_as_they_were(depth):
    """The thread reads `depth` ahead of the lent batches and no further; a lent buffer is not touched."""
    source = Numbers()
    with Ring(source, requests(), depth) as ring:
        settled(ring, source, depth + 1)
        lent = [next(ring).batch for _ in range(depth + 1)]
        settled(ring, source, depth + 1)
        assert [batch.tokens.tolist() for batch in lent] == [[[n] * 4] for n in range(depth + 1)]
        with pytest.raises(RuntimeError, match="release one"):
            next(ring)
        ring.release()
        assert next(ring).batch.tokens[0, 0] == depth + 1
        # The memory of the first batch was used for it.
        assert lent[0].tokens[0, 0] == depth + 1
        assert [batch.tokens[0, 0] for batch in lent[1:]] == list(range(1, depth + 1))
    assert len(set(source.buffers)) == depth + 1


def test_batches_come_in_order_and_end():
    with Ring(Numbers(), requests(3, 9)) as ring:
        found = []
        for request, batch in ring:
            found.append((request.first_sample, int(batch.labels[0, 0])))
            ring.release()
        assert found == [(n, n) for n in range(3, 9)]
        with pytest.raises(StopIteration):
            next(ring)


def test_what_the_thread_cannot_read_reaches_the_consumer_in_its_turn():
    with Ring(Numbers(fails=2), requests(), depth=4) as ring:
        for number in range(2):
            assert next(ring).request.first_sample == number
        for _ in range(2):
            with pytest.raises(DataError, match=r"shard-00000\.bin: is damaged"):
                next(ring)


def test_a_fault_of_the_requests_reaches_the_consumer():
    unequal = (Request(*DataShare(0, 2).block(n, 3), 4) for n in count())
    with Ring(Numbers(), unequal) as ring, pytest.raises(DataError, match="global_batch_size = 3"):
        next(ring)


def test_closing_in_mid_read_waits_for_the_read_and_reads_nothing_after_it():
    source = Numbers(waits=1)
    ring = Ring(source, requests())
    assert source.reached.wait(SECONDS)
    closing = threading.Thread(target=ring.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    source.go_on.set()
    closing.join(SECONDS)
    assert not closing.is_alive() and not ring._thread.is_alive()
    assert source.read == [0, 1]
    with pytest.raises(RuntimeError, match="closed"):
        next(ring)


def test_closing_ends_a_thread_that_waits_for_a_buffer():
    source = Numbers()
    ring = Ring(source, requests(), depth=1)
    settled(ring, source, 2)
    ring.close()
    assert not ring._thread.is_alive() and source.read == [0, 1]


def test_memory_comes_from_the_callers_function_and_is_made_once():
    made = []

    def allocate(shape):
        made.append(shape)
        return np.empty(shape, np.int64)

    shapes = [Request(n, 2, 4) for n in range(20)] + [Request(n, 3, 8) for n in range(20, 40)]
    with Ring(Numbers(), shapes, depth=1, allocate=allocate) as ring:
        for request, batch in ring:
            assert batch.tokens.shape == (request.rows, request.sequence_length)
            ring.release()
    assert made == [(2, 5)] * 2 + [(3, 9)] * 2


@pytest.mark.parametrize("isolate", [False, True])
def test_ranks_read_through_rings_what_one_reads_without(tmp_path, isolate):
    random = np.random.default_rng(5)
    documents = [random.integers(0, 256, size).tolist() for size in random.integers(1, 30, 200)]
    folder = write(tmp_path / "a", documents)

    def opened():
        return batches(folder, sequence_length=8, isolate_documents=isolate)

    def shares(share):
        return (Request(*share.block(first, 6), 8) for first in range(0, 120, 6))

    for ranks in (1, 2, 3):
        found: list[Batch] = []
        rings = [Ring(opened(), shares(DataShare(rank, ranks))) for rank in range(ranks)]
        for _ in range(20):
            for ring in rings:
                found.append(Batch(*(None if field is None else field.copy() for field in next(ring).batch)))
                ring.release()
        for ring in rings:
            ring.close()
        whole = opened().rows(0, 120)
        for name in ("tokens", "labels", "positions", "document_ids"):
            if getattr(whole, name) is not None:
                assert np.array_equal(np.concatenate([getattr(batch, name) for batch in found]), getattr(whole, name))

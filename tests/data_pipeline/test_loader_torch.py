"""The IterableDataset face: the batches of `Batches`, over stops, changes of ranks, phases and worker processes."""

from __future__ import annotations

import json
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data_pipeline.errors import DataError
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.settings import OrderOptions, PhaseOptions
from data_pipeline.loader.torch import TokenIterableDataset
from tests.data_pipeline.test_loader import batches, write

BATCH = 12


@pytest.fixture
def folder(tmp_path) -> Path:
    random = np.random.default_rng(3)
    documents = [random.integers(0, 256, size).tolist() for size in random.integers(1, 40, 100)]
    return write(tmp_path / "a", documents)


def opened(folder: Path, **options) -> Batches:
    return batches(folder, sequence_length=8, isolate_documents=True, **options)


def joined(parts, name="tokens") -> np.ndarray:
    return torch.cat([part[name] for part in parts]).numpy()


def test_stops_and_changes_of_ranks_read_the_one_sequence(folder):
    """Each time with new objects, and the state of any rank."""
    whole = opened(folder).rows(0, 9 * BATCH)
    state, parts = None, []
    for turn, (ranks, steps) in enumerate([(1, 2), (3, 1), (4, 3), (2, 1), (6, 2)]):
        datasets = [TokenIterableDataset(opened(folder), rank, ranks, BATCH) for rank in range(ranks)]
        if state is not None:
            for dataset in datasets:
                dataset.load_state_dict(state)
        given = [list(islice(dataset, steps)) for dataset in datasets]
        parts += [given[rank][step] for step in range(steps) for rank in range(ranks)]
        states = [json.dumps(dataset.state_dict()) for dataset in datasets]
        assert len(set(states)) == 1 and len(states[0]) < 700
        state = json.loads(states[turn % ranks])
    assert state["samples"] == parts[-1]["next_sample"] == 9 * BATCH
    for name in ("tokens", "labels", "positions", "document_ids"):
        assert np.array_equal(joined(parts, name), getattr(whole, name)), name


def test_what_was_given_out_stays_as_it_was(folder):
    given = list(islice(TokenIterableDataset(opened(folder), global_batch_size=BATCH), 8))
    assert np.array_equal(joined(given), opened(folder).rows(0, 8 * BATCH).tokens)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_gives_the_same_and_resumes(folder, workers):
    dataset = TokenIterableDataset(opened(folder), 1, 2, BATCH)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    parts = list(islice(loader, 3))
    # A worker has read further by now; the batch says how far training has come.
    state = dataset.state_dict(parts[-1]["next_sample"])
    assert state["samples"] == 3 * BATCH
    resumed = TokenIterableDataset(opened(folder), 1, 2, BATCH)
    resumed.load_state_dict(state)
    parts += list(islice(DataLoader(resumed, batch_size=None, num_workers=workers), 2))
    whole = opened(folder).rows(0, 5 * BATCH).tokens.reshape(5, 2, BATCH // 2, 8)[:, 1]
    assert np.array_equal(joined(parts), whole.reshape(-1, 8))


def test_more_workers_are_refused(folder):
    loader = DataLoader(TokenIterableDataset(opened(folder), 0, 1, BATCH), batch_size=None, num_workers=2)
    with pytest.raises(DataError, match="num_workers = 2: every worker would read all rows"):
        next(iter(loader))


def test_phases_say_the_size_and_the_length(folder):
    order = OrderOptions(phases=[PhaseOptions(0, 4), PhaseOptions(3, 8), PhaseOptions(5, 8, sequence_length=16)])
    datasets = [TokenIterableDataset(opened(folder, order=order), rank, 2) for rank in range(2)]
    parts = [list(islice(dataset, 7)) for dataset in datasets]
    assert [tuple(part["tokens"].shape) for part in parts[0]] == [(2, 8)] * 3 + [(4, 8)] * 2 + [(4, 16)] * 2
    loader, first = opened(folder, order=order), 0
    for step, size in enumerate([4] * 3 + [8] * 4):
        assert np.array_equal(joined([part[step] for part in parts]), loader.rows(first, size).tokens)
        first += size


def test_a_state_of_other_data_is_refused_unless_accepted(folder, tmp_path):
    other = write(tmp_path / "other/a", [[1] * 300])
    state = TokenIterableDataset(opened(other), global_batch_size=4).state_dict(40)
    with pytest.raises(DataError, match="source a holds other data"):
        TokenIterableDataset(opened(folder), global_batch_size=4).load_state_dict(state)
    accepting = TokenIterableDataset(opened(folder), global_batch_size=4, accept_changes=True)
    accepting.load_state_dict(state)
    assert next(iter(accepting))["next_sample"] == 44


def test_shares_and_sizes_are_checked_before_the_start(folder):
    with pytest.raises(DataError, match="rank 0 of 5 has no equal share of global_batch_size = 12"):
        TokenIterableDataset(opened(folder), 0, 5, BATCH)
    with pytest.raises(DataError, match="rank 2 of 2"):
        TokenIterableDataset(opened(folder), 2, 2, BATCH)
    with pytest.raises(DataError, match="give a batch size or phases"):
        TokenIterableDataset(opened(folder))


def test_a_consumer_that_stops_leaves_no_thread(folder):
    before = threading.active_count()
    iterator = iter(TokenIterableDataset(opened(folder), global_batch_size=BATCH))
    next(iterator)
    assert threading.active_count() == before + 1
    iterator.close()
    assert threading.active_count() == before

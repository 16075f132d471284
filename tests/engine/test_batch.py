"""numpy rows to tensors, and their cut into micro-batches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megaxf.engine.batch import TorchBatch, micro_batches, to_torch


def rows(**optional):
    labels = np.array([[1, -100, 3], [-100, -100, 6], [7, 8, 9], [-100, -100, -100]])
    absent = dict.fromkeys(("positions", "document_ids", "sources"))
    return SimpleNamespace(**{"tokens": np.arange(12).reshape(4, 3), "labels": labels, **absent, **optional})


def test_values_and_types_are_kept():
    batch = to_torch(rows(positions=np.full((4, 3), 2, dtype=np.int32)), "cpu")
    assert batch.tokens.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert batch.positions.dtype == batch.tokens.dtype == torch.int64
    assert batch.document_ids is None
    assert batch.counted() == 6


def test_micro_batches_are_the_rows_in_order():
    whole = to_torch(rows(document_ids=np.arange(12).reshape(4, 3), sources=np.array([3, 0, 0, 1])), "cpu")
    for size in (1, 2, 4):
        parts = micro_batches(whole, size)
        assert [len(part.tokens) for part in parts] == [size] * (4 // size)
        assert all(part.positions is None for part in parts)
        for index in (0, 1, 3, 5):
            assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


def test_a_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="4 rows cannot be cut into micro-batches of 3"):
        micro_batches(TorchBatch(torch.zeros(4, 2), torch.zeros(4, 2)), 3)

"""Which rows a rank reads: a matter of its place on the data axis and of the position, and of nothing else."""

from types import SimpleNamespace

import pytest
import torch

from megaxf.train.feed import Feed
from megaxf.train.sources import open_batches


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_ranks_of_the_data_axis_share_the_rows_of_a_step(make, ranks):
    """8 rows from sample 12 on, beyond the 16 rows of an epoch in the second step; micro-batches of 2."""
    run = make(train={"global_batch_size": 8})
    batches, found = open_batches(run, "train"), []
    for rank in range(ranks):
        feed = Feed(batches, run, SimpleNamespace(data_size=ranks, data_rank=rank), torch.device("cpu"), 12, 3)
        found.append([feed.next(), feed.next()])
        feed.close()
        assert feed.position == 28
    for step, first in enumerate((12, 20)):
        micro_batches = [batch for rank in found for batch in rank[step]]
        assert [batch.samples.tolist() for batch in micro_batches] == [[n, n + 1] for n in range(first, first + 8, 2)]
        rows = torch.cat([batch.tokens for batch in micro_batches])
        assert torch.equal(rows, torch.from_numpy(batches.rows(first, 8).tokens).long())

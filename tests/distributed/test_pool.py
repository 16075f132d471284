"""The pool itself: results in order, errors with their rank, no hang."""

import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.pool import Pool, RemoteError


def total(value):
    tensor = torch.tensor([float(value + dist.get_rank())])
    dist.all_reduce(tensor)
    return dist.get_rank(), tensor.item(), torch.get_num_threads()


def fail_on_rank_one():
    if dist.get_rank() == 1:
        raise ValueError("the message of rank 1")
    dist.barrier()


def sleep(seconds):
    time.sleep(seconds)


def test_results_come_in_rank_order(ranks2):
    assert ranks2(total, 10) == [(0, 21.0, 1), (1, 21.0, 1)]
    assert ranks2(total, 0) == [(0, 1.0, 1), (1, 1.0, 1)]


def test_a_failure_names_the_rank_and_the_next_call_works():
    pool = Pool()
    try:
        with pytest.raises(RemoteError, match=r"(?s)fail_on_rank_one on 2 ranks.*rank 1: .*the message of rank 1"):
            pool(2, fail_on_rank_one)
        assert pool(2, total, 10)[1] == (1, 21.0, 1)
        with pytest.raises(RemoteError, match=r"ranks \[0, 1\] did not come back"):
            pool(2, sleep, 60, timeout=0.5)
    finally:
        pool.close()

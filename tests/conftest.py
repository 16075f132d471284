"""Fixtures for all tests."""

import functools
import os

import pytest

from tests.distributed.pool import Pool

# Before torch is imported, and for the processes that tests start.
os.environ |= {
    # A second thread only waits, at full speed, for the first: these models are too small to share.
    "OMP_NUM_THREADS": "1",
    # No helpers that compile beside the one process that does.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # The instructions that the processor lists work: otherwise torch compiles a program to try each, for half a minute.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}


@pytest.fixture(scope="session")
def run_on():
    """`run_on(ranks, function, *args)`: what a top-level function gives on each rank; see tests.distributed.pool."""
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ranks2(run_on):
    """`ranks2(function, *args)`: on two ranks."""
    return functools.partial(run_on, 2)

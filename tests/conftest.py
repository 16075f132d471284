"""Fixtures for all tests."""

import functools

import pytest

from tests.distributed.pool import Pool


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

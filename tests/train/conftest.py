"""Data for the tests of training."""

import pytest

from tests.train.kit import tiny_run, write_data


@pytest.fixture
def make(tmp_path):
    """`make(section={...})`: a tiny run whose data is there."""
    write_data(tmp_path / "data")
    return lambda **sections: tiny_run(tmp_path, **sections)

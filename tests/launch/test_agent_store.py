"""The ranks of one start share a part of the agents' store, whatever earlier starts have left there."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from launch.agent_store import START, of_this_start
from launch.launchers import Launch
from megaxf.config_errors import ConfigError


@pytest.fixture
def connect():
    """`connect()`: a client of a store of its own, as each rank has."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: TCPStore("127.0.0.1", server.port, is_master=False)


def start(connect, ranks, seconds=60.0):
    """Their parts of the store, as these ranks of three see them."""
    with ThreadPoolExecutor(3) as pool:
        launches = [Launch(rank=rank, world_size=3, host=f"host{rank}", launcher="torchrun") for rank in ranks]
        return list(pool.map(lambda launch: of_this_start(connect(), launch, seconds), launches))


def test_each_start_has_a_part_of_its_own(connect):
    first, *others = start(connect, (0, 1, 2))
    first.set("address", "dead")
    assert [other.get("address") for other in others] == [b"dead"] * 2
    *others, second = start(connect, (1, 2, 0))  # two answer the first start before the second has a name
    assert not second.check(["address"])
    second.set("address", "alive")
    assert [other.get("address") for other in others] == [b"alive"] * 2


def test_ranks_that_do_not_come_are_named(connect):
    with pytest.raises(ConfigError, match=r"1 of 3 ranks came in time; missing: rank 1, 2\. Look for errors"):
        start(connect, (0,), seconds=0.5)


def test_an_older_start_is_no_answer(connect):
    start(connect, (0, 1, 2))
    assert connect().check([START])
    with pytest.raises(ConfigError, match=r"rank 2 on host2 has not heard of rank 0 in time"):
        start(connect, (2,), seconds=0.5)

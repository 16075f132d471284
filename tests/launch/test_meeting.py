"""Ranks that meet: on a port that all compute, beside strangers; those that do not come, or come twice (85, 89)."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch import meeting
from launch.launchers import Launch
from launch.meeting import FIRST_PORT, PORTS, TRIES, meet, ports
from megaxf.config_errors import ConfigError


def place(rank, world_size, **changes):
    """A rank of a job on this host."""
    settings = {"launcher": "srun", "address": "127.0.0.1", "job": "Slurm job 7.0", "host": f"node{rank}"} | changes
    return Launch(rank, world_size, **settings)


def answers(places, seconds=20.0):
    """What each rank is told, or its fault."""

    def one(launch):
        try:
            return meet(launch, f"from {launch.host}", seconds)
        except ConfigError as error:
            return error.problems[0]
        except SystemExit as end:
            return end.code

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places))


@pytest.fixture
def stranger():
    """`stranger(port, says)`: another program that listens there, and says something or nothing."""
    listeners, calls = [], []

    def serve(listener, says):
        while True:
            try:
                calls.append(listener.accept()[0])
                calls[-1].sendall(says)
            except OSError:
                return

    def begin(port, says=b""):
        listeners.append(socket.create_server(("", port)))
        threading.Thread(target=serve, args=(listeners[-1], says), daemon=True).start()

    yield begin
    for each in (*listeners, *calls):
        each.close()


def test_ports_follow_from_the_job_and_stay_clear_of_those_that_systems_hand_out():
    chosen = ports(place(0, 2))
    assert chosen == ports(place(1, 2))
    assert len(set(chosen)) == TRIES
    assert all(FIRST_PORT <= port < FIRST_PORT + PORTS < 32768 for port in chosen)
    assert len({ports(place(0, 2, job=f"Slurm job {number}.0"))[0] for number in range(1000)}) > 950
    assert ports(place(0, 2, port=1234)) == [1234]


def test_all_ranks_are_told_the_word_of_rank_0():
    assert answers([place(rank, 5) for rank in range(5)]) == ["from node0"] * 5


def test_two_runs_whose_ports_are_taken_by_strangers_and_each_other(stranger):
    """The first two ports of one run say nothing and rubbish; the other run wants the same ports."""
    first = [place(rank, 3) for rank in range(3)]
    stranger(ports(first[0])[0])
    stranger(ports(first[0])[1], b"HTTP/1.1 400\r\n[]\n")
    same_port = [place(rank, 2, job="another", port=ports(first[0])[2]) for rank in range(2)]
    found = answers([*first, *same_port])
    if found[-1] == "from node0":  # It came first, and the other run went on to the next port.
        assert found == ["from node0"] * 5
    else:
        assert found[:3] == ["from node0"] * 3
        assert f"rank 0 cannot listen on port {same_port[0].port} of node0" in found[3]


def test_those_who_came_are_told_who_did_not():
    found = answers([place(rank, 6) for rank in (0, 1, 4)], seconds=5.0)
    assert len(set(found)) == 1
    assert found[0].startswith("3 of 6 ranks came in time, from node0, node1, node4; missing: rank 2, 3, 5.")


def test_without_rank_0_the_others_say_where_they_looked():
    (found,) = answers([place(1, 2, port=1)], seconds=0.3)
    assert found.startswith("rank 1 on node1 has not found rank 0 within 0 s at 127.0.0.1, port 1:")


def test_variables_that_two_processes_share_are_found():
    found = answers([place(0, 3), place(1, 3, host="a"), place(1, 3, host="b")], seconds=5.0)
    assert all(sentence.startswith("two processes say that they are rank 1 of srun, on ") for sentence in found)


def test_a_head_node_without_address_is_named_at_once():
    for rank in range(2):
        with pytest.raises(ConfigError, match=r"rank 0 is on no-such\.invalid, a name that node. cannot find"):
            meet(place(rank, 2, address="no-such.invalid"), "", 60.0)


def test_a_signal_ends_the_wait_of_rank_0_and_of_those_that_came(monkeypatch):
    came = threading.Event()
    write = meeting._write

    def written(connection, message):
        write(connection, message)
        if "rank" in message:
            came.set()

    monkeypatch.setattr(meeting, "_write", written)
    monkeypatch.setattr(meeting, "asked", came.is_set)
    assert answers([place(0, 3), place(1, 3)]) == [75, 75]


def test_a_signal_ends_a_rank_that_has_not_found_rank_0(monkeypatch):
    monkeypatch.setattr(meeting, "asked", lambda: True)
    assert answers([place(1, 2)]) == [75]

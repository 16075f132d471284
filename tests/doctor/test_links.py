"""What ranks find out about one another: right on made-up clocks and hosts, and with planted faults."""

import time
from itertools import combinations

import pytest
import torch

from megaxf.doctor.cluster import SAME, Cluster, cluster, measure
from megaxf.doctor.links import Pair, Speed, axis_speeds, clock_offsets, slow_hosts, tournament
from megaxf.parallel.mesh import build_mesh
from megaxf.plan.throughput.hardware import find


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_everyone_meets_everyone_once_and_nobody_two_at_a_time(count):
    rounds = list(tournament(count))
    for pairs in rounds:
        players = [one for pair in pairs for one in pair]
        assert len(players) == len(set(players))
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(count), 2))


def offsets(ahead):
    mesh = build_mesh()
    return clock_offsets(mesh, lambda: time.time() + ahead[mesh.rank])


def test_clocks_that_are_off(run_on):
    for found in run_on(4, offsets, [5.0, 5.0, 65.0, -995.0]):
        assert found[0] == 0
        assert found[1:] == pytest.approx([0, 60, -1000], abs=0.5)


def speeds():
    return axis_speeds(build_mesh({"tensor": 2}), torch.device("cpu"), 2**16)


def test_each_axis_with_several_ranks_is_measured(run_on):
    per_rank = run_on(4, speeds)
    assert all(found == per_rank[0] for found in per_rank)
    assert [(one.axis, one.message, one.ranks) for one in per_rank[0]] == [
        (axis, message, 2) for axis in ("data", "tensor") for message in ("all-reduce", "all-gather")
    ]
    assert {one.slowest for one in per_rank[0]} <= {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert all(0 < one.bytes_per_second < 1e12 for one in per_rank[0])


def three_hosts():
    mesh = build_mesh()
    return measure(mesh, torch.device("cpu"), host="abbc"[mesh.rank])


def test_every_two_hosts_send_to_each_other(run_on):
    for found in run_on(4, three_hosts):
        assert found.hosts == list("abbc")
        assert sorted(pair.hosts for pair in found.pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
        assert {check.verdict for check in cluster(found)} == {"good"}


def test_a_slow_host_is_named():
    usual = dict.fromkeys(combinations("abcdef", 2), 10e9)
    assert slow_hosts([Pair(*one) for one in usual.items()]) == []
    slow = {pair: 2e9 if "d" in pair else speed for pair, speed in usual.items()}
    assert slow_hosts([Pair(*one) for one in slow.items()]) == ["d"]


def test_faults_of_a_cluster():
    versions = [("3.11.7", *"1234"), ("3.11.7", *"1294")]
    gpu = find("h100")
    speeds = [
        Speed("tensor", "all-reduce", 2, 0.8 * gpu.link_bandwidth, (0, 0)),
        Speed("data", "all-gather", 2, 0.2 * gpu.network_bandwidth, (0, 1)),
    ]
    found = Cluster(["a", "b"], [0, 3.0], speeds, [], versions)
    checks = {check.name: check for check in cluster(found, gpu)}
    assert checks[f"{SAME[2]} everywhere"][1:3] == ("3 on a; 9 on b", "bad")
    assert checks["clocks"].verdict == "note" and "the clock of b (rank 1)" in checks["clocks"].advice
    assert checks["all-reduce, tensor"].verdict == "good"
    assert checks["all-gather, data"].verdict == "note" and "among a, b" in checks["all-gather, data"].advice

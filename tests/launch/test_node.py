"""What srun starts once a node: torchrun with a place that all nodes agree on, and the exit code of the ranks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from launch import node
from launch.launchers import Launch
from megaxf.config_errors import ConfigError


def test_nodes_agree_on_a_free_port_of_the_first():
    nodes = [Launch(rank, 3, 0, 1, "srun", "127.0.0.1", None, "Slurm job 8.0", f"node{rank}") for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda each: node.torchrun_options(each, 4), nodes))
    places = [dict(option[2:].split("=") for option in options) for options in found]
    assert [place.pop("node-rank") for place in places] == ["0", "1", "2"]
    assert places[0] == places[1] == places[2]
    assert places[0] == places[0] | {"nnodes": "3", "nproc-per-node": "4", "master-addr": "127.0.0.1"}
    assert 1024 < int(places[0]["master-port"]) < 65536


def test_one_node_meets_nobody_and_two_tasks_of_a_node_are_refused():
    assert "--nnodes=1" in node.torchrun_options(Launch(host="here"), 2)
    with pytest.raises(ConfigError, match="srun started 2 tasks on here; start one a node"):
        node.torchrun_options(Launch(0, 2, 0, 2, "srun", "127.0.0.1", host="here"), 2)


@pytest.mark.parametrize(("ended", "code", "said"), [(75, 75, False), (2, 2, False), (1, 1, True), (-9, 137, True)])
def test_the_exit_code_is_that_of_the_rank_that_failed_first(monkeypatch, capsys, ended, code, said):
    given = []

    def torchrun(words):
        given.extend(words)
        later = ProcessFailure(local_rank=1, pid=2, exitcode=-15, error_file="none")
        first = ProcessFailure(local_rank=0, pid=1, exitcode=ended, error_file="none")
        first.timestamp, later.timestamp = 1, 2
        raise ChildFailedError("pretrain.py", {1: later, 0: first})

    monkeypatch.setattr(torch.distributed.run, "main", torchrun)
    assert node.run_ranks(["--nnodes=1"], ["my run.yaml", "a.b=c d"]) == code
    assert given == ["--nnodes=1", str(node.PRETRAIN), "my run.yaml", "a.b=c d"]
    assert ("exitcode" in capsys.readouterr().err) == said

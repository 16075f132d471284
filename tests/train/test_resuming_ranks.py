"""Two ranks that go on: their random state, and folders that are not the same (field reports 81 and 82)."""

import os
import shutil
from pathlib import Path

import torch.distributed as dist

from megaxf.checkpoint import CheckpointError
from tests.train.kit import assert_same_end, checkpoints, start, tiny_run


def test_dropout_goes_on_where_it_stopped(make, run_on):
    straight = make(run_folder=make().run_folder + "-straight", train={"steps": 8, "dropout": 0.2})
    run_on(2, start, straight, timeout=400)
    run = make(train={"steps": 8, "dropout": 0.2})
    assert [outcome for outcome, _ in run_on(2, start, run, 4)] == [75, 75]
    run_on(2, start, run)
    assert_same_end(run, straight)


def start_on_node(nodes):
    """Each rank in a working folder of its own, as on hosts that share no disk."""
    before = os.getcwd()
    os.chdir(f"{nodes}/{dist.get_rank()}")
    try:
        start(tiny_run(Path(), checkpoint={"every": 3}))
    except CheckpointError as error:
        return str(error)
    finally:
        os.chdir(before)
    return "no error"


def test_ranks_that_see_other_checkpoints_stop_together(make, run_on, tmp_path):
    run = make(checkpoint={"every": 3})
    run_on(2, start, run, 7)
    assert checkpoints(run) == [6, 7]
    for rank in range(2):
        shutil.copytree(run.run_folder, tmp_path / "nodes" / str(rank) / "run")
        shutil.copytree(tmp_path / "data", tmp_path / "nodes" / str(rank) / "data")
    shutil.rmtree(tmp_path / "nodes" / "1" / "run" / "checkpoints" / "step-00000007")
    said = run_on(2, start_on_node, str(tmp_path / "nodes"))
    assert said[0] == said[1], "they went back to the step that both have, and stopped where they had to save"
    assert "step-00000009 was not saved" in said[0] and "choose a disk that all share" in said[0]

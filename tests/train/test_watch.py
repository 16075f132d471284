"""Ranks that are silent, have failed or stand still are found and named, and all others end (field report 87)."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from megaxf.parallel.mesh import build_mesh
from megaxf.train.guards import Outcome
from megaxf.train.guards.heartbeat import Heartbeat
from megaxf.train.guards.watch import Beat, Watch, read_beat

ROOT = Path(__file__).resolve().parents[2]


def watching(*places, timeout=10.0):
    """A watch at time 0 that has seen ranks at (step, phase), on hosts a, b, ..."""
    watch = Watch(timeout)
    see(watch, 0.0, *places)
    return watch


def see(watch, now, *places):
    for rank, place in enumerate(places):
        if place is not None:
            watch.see(rank, Beat("abcdef"[rank], *place, number=int(10 * now)), now)


def test_a_beat_comes_back_from_its_text():
    beat = Beat("node 7", 12, "failed: OSError: disk", 3)
    assert read_beat(beat.to_text()) == beat


def test_a_silent_rank_is_named_with_its_host_and_the_last_step_of_each():
    watch = watching((5, "train"), (5, "train"), (5, "data"))
    for now in (4.0, 8.0, 11.0):
        see(watch, now, (5, "train"), None, (5, "train"))
    assert watch.verdict(9.0) is None
    verdict = watch.verdict(11.0)
    assert "rank 1 (b) has been silent for 11 s" in verdict.text
    assert "rank 0" not in verdict.text.split(". ")[0]
    assert verdict.text.endswith("Last heard of: step 5 (train): rank 0 (a), rank 1 (b), rank 2 (c)")
    assert watch.verdict(9.0, patience=8.0) is not None, "once a message has failed, less silence tells"


def test_a_rank_that_failed_is_named_at_once_with_why():
    watch = watching((5, "train"), (5, "failed: OSError: the disk is full"))
    assert watch.verdict(0.0).text.startswith(
        "rank 1 (b) failed: OSError: the disk is full. Last heard of: step 5 (failed)"
    )


def test_where_no_rank_comes_further_those_behind_are_to_show_their_stacks():
    watch = watching((5, "train"), (4, "data"), (5, "data"))
    places = (6, "train"), (5, "data"), (6, "train")
    for now in (3.0, 9.0, 14.0):
        see(watch, now, *places)
    assert watch.verdict(12.9) is None, "they came further at 3"
    verdict = watch.verdict(14.0)
    assert verdict.stuck == [1]
    assert "no rank has come further for 11 s; behind the others, or where they are: rank 1 (b)." in verdict.text


@pytest.mark.parametrize("phase", ["start", "first step", "evaluate", "save"])
def test_slow_phases_have_more_time(phase):
    watch = watching((5, phase), (5, "train"))
    see(watch, 59.0, (5, phase), (5, "train"))
    assert watch.verdict(59.0) is None
    see(watch, 61.0, (5, phase), (5, "train"))
    assert watch.verdict(61.0).stuck == ([0] if phase in ("start", "first step") else [1])


def test_ranks_that_are_done_are_not_missed():
    watch = watching((5, "done"), (5, "done"))
    assert watch.verdict(1e6) is None


def test_the_end_waits_for_a_beat_that_the_store_has_not_taken_yet(tmp_path):
    """Python aborts the process where it finds a thread in the store's calls as it ends."""
    begun, answer, ended = threading.Event(), threading.Event(), []

    def slow_store():
        begun.set()
        answer.wait()
        ended.append(True)

    with Heartbeat(build_mesh(), tmp_path, timeout=1.0) as heartbeat:
        heartbeat._look = slow_store
        begun.wait()
        threading.Timer(0.5, answer.set).start()
    assert ended


RANKS = """
import sys, time
import torch.distributed as dist
from pathlib import Path
from megaxf.parallel.mesh import build_mesh
from megaxf.train.guards.heartbeat import Heartbeat

rank, folder = int(sys.argv[1]), Path(sys.argv[2])

def sleep_for_ever():
    time.sleep(1000)

def fall():
    raise ZeroDivisionError("planted")

dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
with Heartbeat(build_mesh(), folder / "stacks", timeout=3.0) as heartbeat:
    for step in range(1, 4):
        heartbeat.beat(step, "data")
        if step == 3 and rank == 1:
            globals()[sys.argv[3]]()
        heartbeat.beat(step, "train")
        dist.barrier()
"""


def run_ranks(folder, fault):
    """Two ranks, of which the second has the fault in the third step: (exit code, what it said) of each."""
    (folder / "ranks.py").write_text(RANKS)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, "ranks.py", str(rank), str(folder), fault] for rank in range(2)]
    ranks = [subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE) for command in commands]
    said = [rank.communicate(timeout=400)[1].decode() for rank in ranks]
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def test_an_error_of_one_rank_ends_all_and_is_told_there(tmp_path):
    (code, said), (failed, trace) = run_ranks(tmp_path, "fall")
    assert (code, failed) == (Outcome.LOST, 1), said + trace
    assert "rank 1 (" in said and "ZeroDivisionError: planted" in said, said
    assert "Traceback" in trace and "in fall" in (tmp_path / "stacks" / "rank-00001.txt").read_text()


def test_a_rank_that_stands_still_ends_all_and_shows_where_it_stood(tmp_path):
    codes, said = zip(*run_ranks(tmp_path, "sleep_for_ever"), strict=True)
    assert codes == (Outcome.LOST,) * 2, said
    verdict = "".join(said)  # of the rank that looks first; the other may hear of its end before
    assert re.search(r"no rank has come further for \d+ s; behind the others, or where they are: rank 1 \(", verdict)
    assert "Last heard of: step 3 (data): rank 1" in verdict and "step 3 (train): rank 0" in verdict
    assert (tmp_path / "stacks" / "rank-00001.txt").is_file()
    assert "in sleep_for_ever" in (tmp_path / "stacks" / "rank-00001.txt").read_text()


@pytest.mark.parametrize(("fault", "ends"), [("fall", 1), ("sleep_for_ever", Outcome.LOST)])
def test_where_stacks_cannot_be_written_all_end_as_well(tmp_path, fault, ends):
    (tmp_path / "stacks").write_text("no folder")
    (code, said), (other, trace) = run_ranks(tmp_path, fault)
    assert (code, other) == (Outcome.LOST, ends), said + trace
    assert "stacks/rank-00001.txt cannot be written: " in trace

"""A run on a real Slurm of two nodes, through megaxf submit: time limit, cancellation, a dead node, an array."""

import json
import signal
from pathlib import Path

import psutil
import pytest

from megaxf.config import to_yaml
from tests.cluster.slurm import processes
from tests.train.kit import assert_same_end, checkpoints, column, tiny_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
TWO_NODES = ["--nodes", "2"]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}


def wait_for_step(site, run, step):
    """Until the step is recorded."""
    metrics = Path(run.run_folder) / "metrics.jsonl"

    def there():
        lines = metrics.read_text().splitlines()[:-1] if metrics.exists() else []
        return any(json.loads(line)["step"] >= step for line in lines)

    site.slurm.until(there, f"step {step}")


@pytest.fixture
def finished(site):
    """`finished(run file, run)`: another run of the same settings, which nothing disturbed."""

    def finish(file, run):
        calm = run.model_copy(update={"run_folder": str(site.folder / "calm")})
        job = site.submit(file, "run_folder=calm", *TWO_NODES)
        assert site.slurm.wait(job, ENDED)["JobState"] == "COMPLETED", site.log(job)
        return calm

    return finish


def test_the_time_limit_saves_and_queues_again_and_nothing_is_lost(site, finished):
    file, run = site.write(train={"steps": 300, "dropout": 0.1})
    job = site.submit(file, *TWO_NODES, "--stop-seconds", "170")
    wait_for_step(site, run, 3)
    ranks = processes(words="pretrain.py")
    for rank in ranks:  # Slurm looks at its limits twice a minute: the run must not be done before.
        rank.suspend()
    hours, minutes, _ = site.slurm.job(job)["RunTime"].split(":")
    limit = 60 * int(hours) + int(minutes) + 3
    site.slurm.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    site.slurm.until(lambda: "the time limit is near" in site.log(job), "the signal")
    for rank in ranks:
        rank.resume()
    site.slurm.wait(job, {"PENDING"})
    stopped = checkpoints(run)[-1]
    assert 3 <= stopped < 300
    assert column(run, "step") == list(range(1, stopped + 1))
    assert "stopped and saved; it goes back into the queue" in site.log(job)
    site.slurm.ask("scontrol", "update", f"JobId={job}", "TimeLimit=60", "StartTime=now")
    ended = site.slurm.wait(job, ENDED)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), site.log(job)
    assert f"going on after step {stopped} " in site.log(job)
    assert_same_end(run, finished(file, run))


def test_scancel_saves_and_ends_all_and_the_same_command_continues(site):
    """With one task a GPU, that is a rank."""
    file, run = site.write(train={"steps": 100_000})
    words = [file, *TWO_NODES, "--template", "pretrain-per-gpu"]
    job = site.submit(*words)
    wait_for_step(site, run, 3)
    ranks = processes(words="pretrain.py")
    site.slurm.ask("scancel", job)
    site.slurm.until(lambda: not site.slurm.ask("squeue", "-h", "-j", job), "the end of the job")
    ended = site.slurm.job(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
    (stopped,) = checkpoints(run)
    assert column(run, "step") == list(range(1, stopped + 1))
    job = site.submit(*words, f"train.steps={stopped + 5}", "--job-name", 'a "b" $c d\'s')
    assert site.slurm.ask("squeue", "-h", "-j", job, "-o", "%j") == 'a "b" $c d\'s'
    assert site.slurm.wait(job, ENDED)["JobState"] == "COMPLETED", site.log(job)
    assert column(run, "step") == list(range(1, stopped + 6))


def test_a_chain_of_jobs_goes_on_until_the_run_is_done(site):
    """The first is asked to save as ahead of the time limit, the second ends the run, the third is not needed."""
    file, run = site.write(train={"steps": 1000})
    options = ["--gpus-per-node", "0", "--time", "60", "--environment", "site.sh", "--json", "--chain", "3"]
    first, second, third = json.loads(site.megaxf("submit", file, *TWO_NODES, *options))["jobs"]
    wait_for_step(site, run, 3)
    site.slurm.ask("scancel", "--signal=USR1", "--batch", first)
    ended = site.slurm.wait(first, ENDED)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "75:0", "0"), site.log(first)
    assert site.slurm.wait(second, ENDED)["JobState"] == "COMPLETED", site.log(second)
    assert site.slurm.wait(third, ENDED)["JobState"] == "CANCELLED"
    assert column(run, "step") == list(range(1, 1001))


def test_a_node_that_dies_costs_only_the_steps_since_the_last_checkpoint(site, finished):
    file, run = site.write(train={"steps": 400}, checkpoint={"every": 20})
    job = site.submit(file, *TWO_NODES)
    wait_for_step(site, run, 45)
    for rank in processes(words="pretrain.py"):
        rank.suspend()
    site.slurm.kill_node("node2")
    for rank in processes(words="pretrain.py"):
        rank.send_signal(signal.SIGCONT)
    site.slurm.until(lambda: not processes(words="pretrain.py"), "the end of the other ranks")
    site.slurm.until(
        lambda: "down" in site.slurm.ask("sinfo", "-h", "-n", "node2", "-o", "%T"), "node2 to be missed", 180
    )
    site.slurm.start_node("node2")
    site.slurm.until(lambda: site.slurm.job(job)["JobState"] in {"PENDING", *ENDED}, "the job to leave")
    # It starts again after two minutes: Slurm still ends what ran on the node under its number.
    ended = site.slurm.wait(job, ENDED)
    assert ended["JobState"] == "COMPLETED", site.log(job)
    assert "going on after step" in site.log(job)
    assert_same_end(run, finished(file, run))


def test_a_list_of_runs_as_an_array_which_goes_on_where_it_was(site):
    """In the form of runs.txt of megaxf plan ladder. A task is cancelled in the middle, two more runs come later."""
    runs = []
    for number, steps in enumerate((12, 100_000, 20, 16)):
        name, run = site.write(run_folder=str(site.folder / f"rung-{number}"), train={"steps": steps})
        runs.append((name, run))
    (site.folder / "runs.txt").write_text("".join(f"{name}\n" for name, _ in runs))
    words = ["runs.txt", "--template", "sweep", "--at-once", "2"]
    first = site.submit(*words, "--array", "0-1")
    assert site.slurm.wait(f"{first}_0", ENDED)["JobState"] == "COMPLETED", site.log(f"{first}_0")
    wait_for_step(site, runs[1][1], 3)
    site.slurm.ask("scancel", f"{first}_1")
    site.slurm.until(lambda: not site.slurm.ask("squeue", "-h", "-j", first), "the end of the array")
    (stopped,) = checkpoints(runs[1][1])
    (site.folder / runs[1][0]).write_text(
        to_yaml(tiny_run(site.folder, run_folder=runs[1][1].run_folder, train={"steps": stopped + 4}))
    )
    second = site.submit(*words)
    for task, said in enumerate(["nothing is left to do", f"going on after step {stopped} ", "a new run", "a new run"]):
        ended = site.slurm.wait(f"{second}_{task}", ENDED)
        log = site.log(f"{second}_{task}")
        assert ended["JobState"] == "COMPLETED" and said in log, log
    assert [column(run, "step")[-1] for _, run in runs] == [12, stopped + 4, 20, 16]

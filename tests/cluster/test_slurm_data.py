"""Data prepared, and a ladder of runs trained for a scaling law, on a real Slurm of two nodes."""

import shutil

import numpy as np
import pytest

from data_pipeline.format.verify import verify
from data_pipeline.format.writer import DatasetWriter
from megaxf.plan.laws.files import write_law
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import Law
from megaxf.train.curves import read_folder
from tests.cluster.test_slurm import ENDED, wait_for_step
from tests.data_pipeline.kit import byte_tokenizer, files_of, write_jsonl
from tests.train.kit import VOCABULARY, column, tiny_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("way", ["srun", "array", "mpirun"])
def test_data_prepared_on_two_nodes_is_that_of_one_process(site, way):
    """Under srun, as an array of which each task is a part, and under Open MPI's mpirun."""
    if way == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian and Ubuntu: apt install openmpi-bin)")
    for name in ("a", "b"):
        write_jsonl(site.folder / f"{name}.jsonl", (f"{name}{k:03d} " * (1 + k % 7) for k in range(300)))
    byte_tokenizer(site.folder / "byte")
    words = ["a.jsonl", "b.jsonl", "--tokenizer", "byte", "--unit-bytes", "1000", "--shard-tokens", "1000"]
    site.megaxf("prepare", *words, "--processes", "1", "--output", "alone", "--name", "data")
    alone = files_of(site.folder / "alone")
    options = ["--nodes", "1", "--array", "0-1"] if way == "array" else ["--nodes", "2"]
    with_mpi = {"prepare_with": "mpirun", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables = with_mpi if way == "mpirun" else {}
    job = site.sbatch("prepare.sbatch", *words, "--output", way, "--name", "data", options=options, **variables)
    for task in [f"{job}_0", f"{job}_1"] if way == "array" else [job]:
        assert site.slurm.wait(task, ENDED)["JobState"] == "COMPLETED", site.log(task)
    assert verify(site.folder / way)
    assert files_of(site.folder / way) == alone


def write_texts(folder):
    """Tokens of which the next can be guessed, the better the larger the model and the longer the training."""
    draw = np.random.default_rng(0)
    steps = draw.choice([1, 2, 4, 7, 11, 16], 83_000, p=[0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    ids = 1 + np.cumsum(steps) % (VOCABULARY - 1)
    with DatasetWriter(folder, vocab_size=VOCABULARY, eod_id=0) as writer:
        for split, part in (("train", ids[:80_001]), ("validation", ids[80_001:])):
            writer.add(split, part, np.array([len(part)]))
        writer.finish()


def test_a_ladder_is_trained_as_an_array_and_read_by_the_fit(site):
    """To what megaxf plan fit reads. The longest run is cancelled in the middle, and submitted again."""
    write_texts(site.folder / "texts")
    texts = {"sources": {"text": {"folder": str(site.folder / "texts")}}}
    file, _ = site.write(data=texts, train={"micro_batch_size": 4}, evaluate={"every": 0})
    # Of large models and few tokens, so that the runs are short.
    law = Law("short", Surface(1.0, 200.0, 100.0, 0.5, 0.5), "tests", "total", "none")
    write_law(site.folder / "law.json", law)
    budget = ["--flops", "1e10", "--budgets", "2", "--sizes", "5", "--law", "law.json"]
    site.megaxf("plan", "ladder", file, *budget, "-o", "ladder")
    files = (site.folder / "ladder" / "runs.txt").read_text().split()
    words = ["ladder/runs.txt", "--template", "sweep", "--at-once", "2"]
    longest = tiny_run(site.folder, run_folder=str(site.folder / files[5]).replace("ladder/", "ladder/runs/")[:-5])
    first = site.submit(*words)
    wait_for_step(site, longest, 3)
    site.slurm.ask("scancel", f"{first}_5")
    site.slurm.until(lambda: not site.slurm.ask("squeue", "-h", "-j", first), "the end of the array")
    states = [site.slurm.job(f"{first}_{task}")["JobState"] for task in range(10)]
    assert states == ["COMPLETED"] * 5 + ["CANCELLED"] + ["COMPLETED"] * 4
    stopped = column(longest, "step")[-1]

    second = site.submit(*words, "--array", "0,5")
    for task, said in ((0, "nothing is left to do"), (5, f"going on after step {stopped} ")):
        ended = site.slurm.wait(f"{second}_{task}", ENDED)
        log = site.log(f"{second}_{task}")
        assert ended["JobState"] == "COMPLETED" and said in log, log
    curves, unfinished = read_folder(site.folder / "ladder")
    assert (len(curves), unfinished) == (10, [])
    # Where a hundred steps of the largest models are dearer than their size is worth, there is no law, and it says so.
    refused = site.megaxf("plan", "fit", "ladder", "-o", "fit", "--bootstraps", "50", code=2)
    assert "megaxf: error: the runs do not identify a law: " in refused

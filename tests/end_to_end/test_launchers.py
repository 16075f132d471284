"""One run file under torchrun, under mpirun and in one process: the same losses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megaxf.config import to_yaml
from tests.train.kit import column, records, tiny_run, write_data

ROOT = Path(__file__).resolve().parents[2]
PRETRAIN = str(ROOT / "launch" / "pretrain.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", PRETRAIN]
MPIRUN = ["mpirun", "-n", "4", "--oversubscribe", "--allow-run-as-root", sys.executable, PRETRAIN]
ONE_PROCESS = [sys.executable, "-m", "launch.megaxf", "pretrain"]
ALONE = ["parallel.tensor_parallel_size=1", "parallel.pipeline_parallel_size=1", "parallel.sequence_parallel=false"]


@pytest.fixture(scope="module")
def finish(tmp_path_factory):
    """`finish(name, command, override, ...)`: the run after a command with the run file for 4 ranks has ended well."""
    folder = tmp_path_factory.mktemp("launchers")
    write_data(folder / "data")
    run = tiny_run(
        folder,
        train={"steps": 5, "dropout": 0.1},
        parallel={"tensor_parallel_size": 2, "sequence_parallel": True, "pipeline_parallel_size": 2},
        engine={"zero_stage": 1},
        optimizer={"eps": 1e-6},
    )
    (folder / "run.yaml").write_text(to_yaml(run))
    inherited = {key: value for key, value in os.environ.items() if key not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
    env = inherited | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}

    def finish(name, command, *overrides):
        run_folder = str(folder / name)
        words = [*command, str(folder / "run.yaml"), f"run_folder={run_folder}", *overrides]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return run.model_copy(update={"run_folder": run_folder})

    return finish


@pytest.fixture(scope="module")
def alone(finish):
    """The run in one process."""
    return finish("alone", ONE_PROCESS, *ALONE)


@pytest.mark.long
@pytest.mark.parametrize(("name", "command"), [("torchrun", TORCHRUN), ("mpirun", MPIRUN)])
def test_the_losses_are_those_of_one_process(finish, alone, name, command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (Debian and Ubuntu: apt install openmpi-bin)")
    together = finish(name, command)
    assert column(together, "step") == [1, 2, 3, 4, 5]
    for name in ("loss", "gradient_norm", "tokens", "learning_rate"):
        assert column(together, name) == pytest.approx(column(alone, name), rel=1e-5), name
    losses = [[record["loss"] for record in records(run, "evaluation")] for run in (together, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

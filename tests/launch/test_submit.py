"""megaxf submit: what the job is told, with every word quoted for its reader (field reports 86, 94)."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from launch import batch
from launch.megaxf import main
from megaxf.config import to_yaml
from megaxf.convert import huggingface
from megaxf.convert.interface import Form, Trained
from megaxf.models.llama import Config, Model
from megaxf.train import writers
from tests.convert.conftest import Weights
from tests.train.kit import MODEL, tiny_run, write_data

NASTY = 'my "run" $HOME it\'s.yaml'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with data and a run file of a nasty name, to be in."""
    write_data(tmp_path / "data")
    (tmp_path / NASTY).write_text(to_yaml(tiny_run(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """A stand-in on the path that keeps what it is given and numbers the jobs; gives its folder."""
    place = tmp_path / "bin"
    place.mkdir()
    (place / "sbatch").write_text(
        f"#!/bin/bash\ncd {shlex.quote(str(place))}\nnumber=$(($(ls | grep -c script) + 70))\n"
        'printf "%s\\n" "$@" >arguments.$number\ncat >script.$number\n'
        '[ ! -e refuse ] || { echo "sbatch: error: invalid partition" >&2; exit 1; }\necho "$number;cluster"\n'
    )
    (place / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return place


def options(script):
    """The options of a script, as Slurm reads them: up to the first command."""
    head = script.split("\nset -euo pipefail")[0]
    words = [shlex.split(line[8:])[0][2:] for line in head.splitlines() if line.startswith("#SBATCH ")]
    return dict(word.split("=", 1) if "=" in word else (word, "") for word in words)


def started(script, tmp_path, **variables):
    """What the script starts, word for word: with stand-ins for srun, scontrol and bash's checks of the syntax."""
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    stub = 'srun() { while [ "$1" != ranks ]; do shift; done; printf "%s\\0" "${@:2}"; }\n'
    place = {"PATH": "/usr/bin:/bin", "HOME": "/home/nobody", "SLURM_JOB_ID": "7"} | variables
    done = subprocess.run(["bash"], input=stub + script, capture_output=True, text=True, env=place, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_dry_run_prints_a_script_that_starts_exactly_what_was_asked_for(folder, capsys):
    setting = 'run_folder=a "b" $(c)'
    words = [NASTY, setting, "--nodes", "2", "--gpus-per-node", "0", "--time", "48:00:00", "--job-name", 'x "y" $z\'s']
    assert main(["submit", *words, "--partition", "gpu", "--sbatch=--mail-type=FAIL", "--dry-run"]) == 0
    script = capsys.readouterr().out
    found = options(script)
    assert found == found | {"nodes": "2", "ntasks-per-node": "1", "time": "48:00:00", "signal": "B:USR1@300"}
    assert found == found | {"job-name": 'x "y" $z\'s', "partition": "gpu", "mail-type": "FAIL", "requeue": ""}
    assert found["output"] == str(folder / 'a "b" $(c)' / "slurm-%j.out")
    assert "gpus-per-node" not in found
    python, node, *arguments = started(script, folder)
    assert Path(python).name.startswith("python")
    assert Path(node).resolve() == batch.TEMPLATES.parent / "launch" / "node.py"
    assert arguments == ["--ranks", "1", NASTY, setting]
    assert not (folder / 'a "b" $(c)').exists()


def test_one_task_a_gpu(folder, capsys):
    words = ["--time", "60", "--gpus-per-node", "2", "--template", "pretrain-per-gpu", "--dry-run"]
    assert main(["submit", NASTY, *words]) == 0
    script = capsys.readouterr().out
    assert options(script) == options(script) | {"ntasks-per-node": "2", "gpus-per-node": "2"}
    assert started(script, folder)[1:] == [str(batch.TEMPLATES / "../launch/pretrain.py"), NASTY]


def test_submits_a_chain(folder, sbatch, capsys):
    assert main(["submit", NASTY, "--time", "60", "--gpus-per-node", "1", "--chain", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == ["70", "71", "72"]
    assert found["log"] == str(folder / "run" / "slurm-%j.out")
    assert (folder / "run").is_dir()
    given = [(sbatch / f"arguments.{number}").read_text().split() for number in found["jobs"]]
    assert given[0] == ["--parsable"]
    assert given[2] == ["--parsable", "--dependency=afternotok:71", "--kill-on-invalid-dep=yes"]
    assert {(sbatch / f"script.{number}").read_text() for number in found["jobs"]} == {found["script"]}
    assert "no-requeue" in options(found["script"]) and "requeue" not in options(found["script"])


def test_a_sweep_is_an_array_over_the_lines_of_a_list(folder, sbatch, capsys):
    for number in range(3):
        (folder / f"run {number}.yaml").write_text(to_yaml(tiny_run(folder, seed=number)))
    (folder / "runs.txt").write_text("".join(f"run {number}.yaml\n" for number in range(3)))
    words = ["runs.txt", "train.steps=8", "--template", "sweep", "--time", "60", "--gpus-per-node", "0", "--json"]
    assert main(["submit", *words, "--at-once", "2"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]
    assert options(script)["array"] == "0-2%2"
    assert options(script)["output"] == str(folder / "slurm-%A_%a.out")
    for task in range(3):
        place = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "9"}
        first, *rest = started(script, folder, **place)
        assert first.startswith(f"task {task}: run {task}.yaml\n")
        assert rest[1:] == ["--ranks", "1", f"run {task}.yaml", "train.steps=8"]
    assert main(["submit", *words, "--array", "0-2:2,1"]) == 0
    assert options(json.loads(capsys.readouterr().out)["script"])["array"] == "0-2:2,1"
    assert main(["submit", *words, "--array", "0-3"]) == 2
    assert "--array 0-3 names task 3, and runs.txt has 3 lines, counted from 0" in capsys.readouterr().err
    assert main(["submit", "data/train-00000.bin", *words[1:]]) == 2
    assert "cannot be read as a list of run files" in capsys.readouterr().err
    (folder / "run 1.yaml").write_text("seed: x")
    assert main(["submit", *words]) == 2
    assert "run 1.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.stepz=3"], "did you mean train.steps?"),
        (["--nodes", "3"], "train.global_batch_size = 4 is not a multiple"),
        (["--time", "1:2:3:4"], "--time 1:2:3:4 is no time limit"),
        (["--time", "00:05:00"], "--stop-seconds 300 is not less than --time 00:05:00, 300 s"),
        (["--nodes", "0"], "--nodes 0 should be 1 or more"),
        (["--gpus-per-node=-1"], "--gpus-per-node -1 should be 0 or more"),
        (["--chain=-1"], "--chain -1 should be 0 or more"),
        (["--restarts=-3"], "--restarts -3 should be 0 or more"),
        (["--at-once", "0"], "--at-once 0 should be 1 or more"),
        (["--at-once=-2"], "--at-once -2 should be 1 or more"),
        (["--array", "foo bar"], "--array 'foo bar' is no list of tasks"),
        (["--array", "0-5%2"], "--array '0-5%2' is no list of tasks; write it as 0-5,9 or 0-8:2 (and --at-once N)"),
        (["--array", ""], "--at-once and --array have an effect with --template sweep only"),
        (["--time", "٤٨:٠٠:٠٠"], "--time ٤٨:٠٠:٠٠ is no time limit"),
        (["--at-once", "2"], "--at-once and --array have an effect with --template sweep only"),
        (["--environment", "gone.sh"], "--environment gone.sh is no file"),
        (["--job-name", "a\nb"], "may not have several"),
    ],
)
def test_faults_are_told_before_anything_is_submitted(folder, sbatch, capsys, words, sentence):
    assert main(["submit", NASTY, "--time", "60", "--gpus-per-node", "1", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(sbatch.glob("script*"))


def test_the_run_is_judged_as_by_check(folder, sbatch, capsys, monkeypatch):
    """A model that init.from brings, a writer that is missing, an export that no architecture fits, a folder."""
    config = Config(**MODEL)
    shapes = {name: parameter.shape for name, parameter in Model(config).named_parameters()}
    weights = Weights({name: torch.zeros(shape) for name, shape in shapes.items()})
    huggingface.write(Trained(config, weights, None, "float32", []), folder / "hf", Form())
    settings = tiny_run(folder).model_dump(mode="json")
    del settings["model"]
    (folder / "from.yaml").write_text(yaml.safe_dump(settings))
    words = ["submit", "from.yaml", "--time", "60", "--gpus-per-node", "1"]
    assert main([*words, "init.from=hf", "--dry-run"]) == 0
    monkeypatch.setattr(writers, "find_spec", lambda name: None)
    for setting, sentence in (
        ("metrics.wandb={project: mine}", "metrics.wandb needs the package wandb"),
        ("checkpoint.folder=from.yaml", "checkpoint.folder = from.yaml is a file"),
        ("model.vocab_size=60", "model.vocab_size = 60 is smaller than the 61 of init.from"),
    ):
        assert main([*words, "init.from=hf", setting]) == 2
        assert sentence in capsys.readouterr().err
    assert not list(sbatch.glob("script*"))


def test_what_sbatch_says_is_passed_on(folder, sbatch, capsys, monkeypatch):
    (sbatch / "refuse").touch()
    assert main(["submit", NASTY, "--time", "60", "--gpus-per-node", "1"]) == 2
    assert "sbatch refuses the job: sbatch: error: invalid partition" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(folder))
    assert main(["submit", NASTY, "--time", "60", "--gpus-per-node", "1"]) == 2
    assert "there is no sbatch on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "expected"),
    [("90", 5400), ("90:30", 5430), ("48:00:00", 172800), ("2-00", 172800), ("1-02:03", 93780), ("1-02:03:04", 93784)],
)
def test_time_limits(time, expected):
    assert batch.seconds(time) == expected


@pytest.mark.parametrize(
    ("code", "again", "array", "expected"),
    [
        (75, "requeue", False, "requeue 7"),
        (75, "requeue", True, "requeue 9_3"),
        (75, "chain", False, "ends with exit code 75"),
        (0, "requeue", False, "ends with exit code 0"),
        (2, "requeue", False, "ends with exit code 2"),
        (3, "requeue", False, "ends with exit code 3"),
        (137, "requeue", False, "start 2 of 2 again in 2 s\njob 7 ends with exit code 137"),
    ],
)
def test_exit_code_75_puts_the_job_back_into_the_queue(code, again, array, expected):
    done = run_job(f"srun() {{ return {code}; }}", again, array)
    assert (done.returncode, done.stderr) == (code, "")
    assert expected in done.stdout
    assert ("requeue " in done.stdout) == expected.startswith("requeue")


@pytest.mark.parametrize(("codes", "restarted", "starts"), [("2", 0, 1), ("2 0", 1, 2), ("137 2 0", 0, 3)])
def test_only_the_first_start_of_a_job_shows_a_fault_of_the_users(tmp_path, codes, restarted, starts):
    """Of the codes every start of the ranks, a process of its own, takes the next."""
    left = tmp_path / "codes"
    left.write_text("".join(f"{code}\n" for code in codes.split()))
    take = f'srun() {{ local code; code=$(head -n 1 "{left}"); sed -i 1d "{left}"; return "$code"; }}'
    done = run_job(f"{take}\nSLURM_RESTART_COUNT={restarted}")
    assert (done.stdout.count("again in"), left.read_text()) == (starts - 1, ""), done
    assert done.returncode == int(codes.split()[-1])


def test_a_job_that_is_cancelled_in_a_pause_says_so():
    """Slurm's signal ends the pause itself, too, which is no reason to leave without a word."""
    done = run_job("srun() { return 137; }\nsleep() { kill -TERM $$; return 143; }")
    assert done.returncode == 137
    assert done.stdout.endswith("job 7 was cancelled (exit code 137); the same command continues\n")


def run_job(programs, again="requeue", array=False):
    """What a batch script does with programs put into its shell."""
    script = f"""
        set -euo pipefail
        scontrol() {{ echo "$@"; }}
        sleep() {{ :; }}
        {programs}
        again={again} restarts=2 pause=1
        source {shlex.quote(str(batch.TEMPLATES / "job.sh"))}
        run_until_done true
        queue_again
    """
    place = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    place |= {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"} if array else {}
    return subprocess.run(["bash"], input=script, capture_output=True, text=True, env=place)


def test_templates_have_comments_and_pass_shellcheck():
    scripts = sorted([*batch.TEMPLATES.glob("*.sbatch"), *batch.TEMPLATES.glob("*.sh")])
    assert {"pretrain.sbatch", "pretrain-per-gpu.sbatch", "prepare.sbatch", "sweep.sbatch", "environment.sh"} <= {
        script.name for script in scripts
    }
    assert all(re.search(r"^# \w", script.read_text(), flags=re.MULTILINE) for script in scripts)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin")
    done = subprocess.run(
        [str(shellcheck), "-x", *map(str, scripts)], capture_output=True, text=True, cwd=batch.TEMPLATES.parent
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("variables", "start"),
    [
        ({}, ["srun", "--cpu-bind=none"]),
        ({"prepare_with": "mpirun"}, ["mpirun", "-n", "3", "--map-by", "node", "--bind-to", "none"]),
        ({"SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1"}, []),
    ],
)
def test_prepare_is_started_by_srun_by_mpirun_or_as_part_of_an_array(tmp_path, variables, start):
    for name in ("srun", "mpirun", "python3"):
        (tmp_path / name).write_text(f'#!/bin/bash\nprintf "%s\\0" {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    place = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
    place |= {"SLURM_ARRAY_JOB_ID": "7", "here": str(batch.TEMPLATES)} | variables
    script = ["bash", str(batch.TEMPLATES / "prepare.sbatch"), "my crawl/a b.jsonl", "--output", "$HOME"]
    done = subprocess.run(script, capture_output=True, text=True, env=place)
    assert done.returncode == 0, done.stderr
    part = [] if start else ["--part", "4/8"]
    expected = [*start, "python3", "-m", "launch.megaxf", "prepare", "my crawl/a b.jsonl", "--output", "$HOME", *part]
    assert done.stdout.split("\0")[:-1] == expected

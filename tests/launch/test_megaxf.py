"""The megaxf command: its verbs, its help, its faults."""

import json
import subprocess
import sys

import pytest

from launch import megaxf
from launch.megaxf import command, main, verbs
from megaxf.config import to_yaml
from tests.train.kit import tiny_run, write_data


@pytest.fixture
def run_file(tmp_path):
    """A run file whose data is there."""
    write_data(tmp_path / "data")
    path = tmp_path / "run.yaml"
    path.write_text(to_yaml(tiny_run(tmp_path)))
    return str(path)


def test_help_lists_the_verbs_in_the_order_of_the_work(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == page
    listed = [line.split()[0] for line in page.split("order of the work:\n")[1].split("\n\n")[0].splitlines()]
    assert listed == verbs()
    work = [verb for verb in listed if verb in megaxf.ORDER]
    assert work == [verb for verb in megaxf.ORDER if verb in listed]
    assert {"prepare", "pretrain"} <= set(listed)
    assert all(len(line) <= 100 for line in page.splitlines())


def test_help_is_light():
    code = (
        "import sys; from launch.megaxf import main; main(['--help']); "
        "sys.exit(' '.join({'torch', 'numpy', 'deepspeed', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(capsys):
    import megaxf as library

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"megaxf {library.__version__}\n"


@pytest.mark.parametrize(
    ("verb", "advice"),
    [("pretain", "did you mean pretrain?"), ("Prepare", "did you mean prepare?"), ("xyz", "the verbs are")],
)
def test_unknown_verbs(capsys, verb, advice):
    assert main([verb]) == 2
    assert capsys.readouterr().err.startswith(f"megaxf: error: {verb!r} is not a verb; {advice}")


def test_faults_are_messages_and_bugs_are_not(capsys, monkeypatch):
    assert main(["pretrain", "absent.yaml"]) == 2
    assert capsys.readouterr().err == "megaxf: error: absent.yaml: 1 error\n  - there is no such file\n"

    class Module:
        HELP = ""

        def add_arguments(parser):
            """None."""

    errors = {
        KeyboardInterrupt(): 130,
        BrokenPipeError(): 141,
        FileNotFoundError(2, "No such file or directory", "a/b"): 2,
        ValueError("a bug"): None,
        OSError("a bug"): None,
        OSError(5, "a bug of the disk", "a/b"): None,
    }
    for error, outcome in errors.items():
        monkeypatch.setattr(megaxf, "command", lambda verb: Module)

        def run(arguments, error=error):
            raise error

        Module.run = run
        if outcome is None:
            with pytest.raises(type(error), match="a bug"):
                main(["pretrain"])
        else:
            before = sys.stdout
            assert main(["pretrain"]) == outcome
            sys.stdout = before
    assert capsys.readouterr().err == "megaxf: error: a/b: cannot be used: No such file or directory\n"


def test_a_path_that_cannot_be_used_is_a_message_on_every_rank(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    module = command("doctor")
    monkeypatch.setattr(megaxf, "command", lambda verb: module)
    monkeypatch.setattr(module, "run", lambda arguments: (tmp_path / "file/x").mkdir())
    for quiet in (False, True):
        assert megaxf.run_verb("doctor", [], quiet) == 2
        said = capsys.readouterr().err
        assert said == f"megaxf: error: {tmp_path}/file/x: cannot be used: Not a directory\n"


def test_check(capsys, run_file):
    assert main(["pretrain", run_file, "train.steps=16", "--check", "--world-size", "2"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "16 steps = 1.02k tokens" in page
    assert "data parallel 2 x accumulation 1 x micro-batch 2; plain torch, fp32" in page
    assert main(["pretrain", "--check", "--world-size", "2", run_file, "--json", "train.steps=16"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["settings"]["model"]["family"]) == (16, "llama")
    assert main(["pretrain", run_file, "--check", "--world-size", "3", "sed=1"]) == 2
    faults = capsys.readouterr().err
    assert "2 errors" in faults and "did you mean seed?" in faults
    assert "train.global_batch_size = 4 is not a multiple" in faults
    assert main(["pretrain", run_file, "--check", "--world-size", "0"]) == 2
    assert "world size 0 is not a number of processes" in capsys.readouterr().err


def test_check_looks_at_the_folders_and_makes_none(capsys, run_file, tmp_path):
    for key in ("run_folder", "checkpoint.folder"):
        assert main(["pretrain", run_file, "--check", f"{key}={run_file}"]) == 2
        assert f"{key} = {run_file} is a file; name another folder" in capsys.readouterr().err
    assert main(["pretrain", run_file, "--check", f"checkpoint.folder={tmp_path}/own"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"data", "run.yaml"}


def test_settings_of_check_have_no_effect_without_it(capsys, run_file):
    assert main(["pretrain", run_file, "--world-size", "2"]) == 2
    assert "--json and --world-size have an effect with --check only" in capsys.readouterr().err
    for option in ("--resume", "--allow-missing"):
        assert main(["pretrain", run_file, "--check", option]) == 2
        assert "--resume and --allow-missing have no effect with --check" in capsys.readouterr().err


def test_half_set_environment_is_an_error_at_once(capsys, run_file, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["pretrain", run_file]) == 2
    assert "WORLD_SIZE = 4 is set, but RANK" in capsys.readouterr().err

"""`megaxf inspect` on a run folder and on a checkpoint."""

import json
import re

import pytest

from launch.megaxf import main
from megaxf.checkpoint import save


@pytest.fixture
def run_folder(tmp_path, holder, mesh):
    for step in (3, 4):
        extra = {"tokens": step * 1000}
        save(
            tmp_path / "checkpoints", step, holder(), extra, mesh, config="model: {hidden_size: 7, rope_scaling: null}"
        )
    return tmp_path


def inspect(capsys, *arguments):
    code = main(["inspect", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_a_run_folder(run_folder, capsys):
    code, out = inspect(capsys, run_folder)
    assert code == 0
    assert re.match(r"step-00000003  step 3, 3,000 tokens seen, optimizer state, [\d.]+ kB, megaxf \d", out)
    assert out.splitlines()[2:4] == ["469 parameters in 3 tensors, without a tokenizer", "model: hidden_size 7"]


def test_one_checkpoint_as_json(run_folder, capsys):
    code, out = inspect(capsys, run_folder / "checkpoints/step-00000004", "--json", "--verify")
    (found,) = json.loads(out)
    assert code == 0 and (found["step"], found["parameters"], found["extra"]) == (4, 469, {"tokens": 4000})


def test_damage_is_named_and_exits_2(run_folder, capsys):
    tensors = run_folder / "checkpoints/step-00000003/tensors/__0_0.distcp"
    content = bytearray(tensors.read_bytes())
    content[2000] ^= 1
    tensors.write_bytes(content)
    (run_folder / "checkpoints/step-00000004/state.json").unlink()
    code, out = inspect(capsys, run_folder)
    assert code == 2 and "step-00000004  cannot be loaded" in out and "state.json is missing" in out
    assert "step-00000003  step 3" in out
    code, out = inspect(capsys, run_folder, "--verify")
    assert code == 2 and "__0_0.distcp is not what was written" in out and "parameters" not in out

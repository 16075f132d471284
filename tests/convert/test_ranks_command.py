"""`megaxf convert` to and from the folders of DeepSpeed and Megatron-LM."""

import pytest
import torch
import yaml

from launch.megaxf import main
from megaxf.checkpoint import read_weights, resolve, save, save_weights
from megaxf.convert import deepspeed, megatron
from megaxf.parallel.mesh import build_mesh
from tests.checkpoint.conftest import Holder


@pytest.fixture
def run_folder(tmp_path, make_config, make_weights, tokenizer_folder):
    config = make_config()
    weights = make_weights(config)
    text = yaml.safe_dump({"model": config.model_dump(), "train": {"precision": "fp32"}})
    folder = tmp_path / "run"
    save_weights(
        folder / "checkpoints", weights.shapes, weights.__getitem__, {}, config=text, tokenizer=tokenizer_folder
    )
    return folder


@pytest.mark.parametrize(
    ("options", "module"),
    [
        (["--to", "deepspeed"], deepspeed),
        (["--to", "megatron", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "3", "--verify"], megatron),
    ],
)
def test_there_and_back(tmp_path, run_folder, capsys, options, module):
    assert main(["convert", str(run_folder), str(tmp_path / "out"), *options]) == 0, capsys.readouterr().err
    found, before = module.read(tmp_path / "out"), read_weights(resolve(run_folder))
    assert found.tokenizer == tmp_path / "out" and found.eos_ids
    assert main(["convert", str(tmp_path / "out"), str(tmp_path / "back"), "--to", "megaxf"]) == 0
    after = read_weights(resolve(tmp_path / "back"))
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)


def test_the_optimizer_goes_along(tmp_path, make_config, make_weights):
    config = make_config(tie_word_embeddings=True)
    holder = Holder(
        shapes={name: tuple(shape) for name, shape in make_weights(config).shapes.items()}, optimizer_step=9
    )
    save(
        tmp_path / "run/checkpoints",
        12,
        holder,
        {},
        build_mesh(),
        config=yaml.safe_dump({"model": config.model_dump()}),
    )
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "deepspeed"]) == 0
    found = deepspeed.read(tmp_path / "out").optimizer
    assert found.step == 9
    for name, tensors in holder.tensors.items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(found.moments[key][name], tensors[key]), (name, key)


def test_ranks_are_megatrons(tmp_path, run_folder, capsys):
    options = ["--to", "deepspeed", "--tensor-parallel-size", "2"]
    assert main(["convert", str(run_folder), str(tmp_path / "out"), *options]) == 2
    assert "--tensor-parallel-size has no effect with --to deepspeed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

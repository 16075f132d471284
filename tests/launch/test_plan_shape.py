"""`megaxf plan shape`: from a size or a budget to a model file that a run takes."""

import json

import pytest

from launch.megaxf import main
from megaxf.plan.laws.table import law


def test_a_model_file_that_pretrain_accepts(capsys, tmp_path):
    model, run = tmp_path / "model.yaml", tmp_path / "run.yaml"
    words = ["--params", "7b", "--tensor-parallel", "8", "--pipeline-parallel", "4", "-o", str(model)]
    assert main(["plan", "shape", *words]) == 0
    printed = capsys.readouterr()
    assert "1. proposal" in printed.out
    assert f"written: {model}" in printed.err
    run.write_text(
        "{run_folder: x, data: {sources: {t: {folder: x}}, sequence_length: 4096}, optimizer: {learning_rate: 1e-3}, "
        "train: {steps: 10, global_batch_size: 64, micro_batch_size: 1}, "
        "parallel: {tensor_parallel_size: 8, pipeline_parallel_size: 4}}"
    )
    assert main(["pretrain", str(run), f"model={model}", "--check", "--world-size", "64", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["model"]["parameters"]
    assert main(["plan", "shape", *words[:-2], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["proposals"]
    assert found[0]["parameters"]["total"] == checked
    assert abs(checked / 7e9 - 1) < 0.02


@pytest.mark.parametrize(("name", "counts"), [("epoch", "total"), ("kaplan", "non_embedding"), ("porian", "matmul")])
def test_a_budget_gives_the_size_by_a_law_as_the_law_counts(capsys, name, counts):
    assert main(["plan", "shape", "--flops", "1e20", "--law", name, "--json"]) == 0
    printed = capsys.readouterr()
    assert f"the law {name}, of 1e+20 FLOPs" in printed.err
    wanted = law(name).form.parameters(1e20)
    for each in json.loads(printed.out)["proposals"]:
        assert each["parameters"][counts] == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of --params and --flops"),
        (["--params", "7b", "--flops", "1e21"], "give one of --params and --flops"),
        (["--params", "7b", "--sequence-length", "0"], "--sequence-length = 0 is too small; use 1 or more"),
        (["--params", "7b", "--law", "kaplan"], "--law says the size for --flops, and has no effect with --params"),
        (["--params", "1e15"], "1e+15 parameters are more than any model has; use at most 2e+13"),
        (["--params", "7b", "--kv-heads", "0"], "--kv-heads = 0 is too small"),
        (["--flops", "1e20", "--law", "epoc"], "did you mean epoch"),
    ],
)
def test_faults(capsys, words, message):
    assert main(["plan", "shape", *words]) == 2
    assert message in capsys.readouterr().err

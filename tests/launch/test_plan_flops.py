"""`megaxf plan flops`: a model or a run, and what is wrong with the question."""

import json

import pytest

from launch.megaxf import main

MODEL = ["--model", "llama3-8b", "--sequence-length", "8192"]


def test_of_a_model(capsys):
    assert main(["plan", "flops", *MODEL, "--tokens", "15T", "--gpu", "h100", "--gpus", "1024", "--mfu", "0.4"]) == 0
    printed = capsys.readouterr().out
    assert "51,471,187,968" in printed
    assert "22.05 days" in printed
    assert main(["plan", "flops", *MODEL, "--gpu", "h100", "--speed", "5762", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conventions"]["convention"] == 61066469376
    assert found["machine"]["utilisation"]["model"] == pytest.approx(5762 * 51471187968 / 989.4e12)


def test_of_a_run(capsys, tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text(
        "{run_folder: x, model: tiny, data: {sources: {t: {folder: x}}, sequence_length: 64}, optimizer: "
        "{learning_rate: 1e-3}, train: {steps: 10, global_batch_size: 8, micro_batch_size: 1, precision: fp32}}"
    )
    assert main(["plan", "flops", str(run), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["plan", "flops", str(run), "train.recompute=full", "--json"]) == 0
    full = json.loads(capsys.readouterr().out)
    assert plain["tokens"] == 10 * 8 * 64
    assert plain["model"] == full["model"]
    assert plain["hardware"]["run"] < full["hardware"]["run"]
    assert main(["plan", "flops", str(run), "parallel.pipeline_parallel_size=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plain


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a run file or --model, and not both"),
        (["--model", "llama3-8b"], "--model needs --sequence-length"),
        (["--model", "llama3", "--sequence-length", "8"], "model = 'llama3' is neither a file nor a model of configs"),
        ([*MODEL[:-1], "8193"], "--sequence-length = 8,193 is more than model.max_position_embeddings = 8,192"),
        ([*MODEL, "--gpu", "h10"], "did you mean h100"),
        ([*MODEL, "--mfu", "0.4"], "name the GPU with --gpu"),
        ([*MODEL, "--mfu", "0"], "--mfu say something about a GPU: name the GPU with --gpu"),
        ([*MODEL, "--gpus", "8", "--hardware", "x.yaml"], "--gpus, --hardware say something about a GPU"),
        ([*MODEL, "--gpu", "h100", "--mfu", "0", "--speed", "1k"], "say the same in two ways"),
        ([*MODEL, "--gpu", "h100", "--mfu", "0.4", "--speed", "1k"], "say the same in two ways"),
        (["run.yaml", "--sequence-length", "8"], "write data.sequence_length="),
    ],
)
def test_faults(capsys, words, message):
    assert main(["plan", "flops", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_file_that_is_none(capsys, tmp_path):
    for text, message in (
        ("{hidden_siz: 8}", "hidden_siz is not a setting; did you mean hidden_size?"),
        ("{family: gpt}", "family: 'gpt' is not a model family; known: gpt2, gpt_neox, llama"),
    ):
        (tmp_path / "model.yaml").write_text(text)
        words = ["--model", str(tmp_path / "model.yaml"), "--sequence-length", "8"]
        assert main(["plan", "flops", *words]) == 2
        assert message in capsys.readouterr().err

"""`megaxf plan --budget` and `megaxf plan budget`: one page, JSON, a run file, faults."""

import json

import pytest

from launch.megaxf import main


def test_a_page_and_a_run_that_passes_the_check(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    assert main(["plan", "--budget", "$20k", "--gpu", "h100", "--nodes", "8", "-o", str(file)]) == 0
    page = capsys.readouterr().out
    for text in (
        "On 64 x h100 at $2.95 an hour",
        "--budget = $20.0k",
        "A = 482.01, B = 2085.43",
        "80% interval of the law",
        "layout ",
        "GiB: ",
        "save every ",
        "What limits it",
        "dollars ",
    ):
        assert text in page
    assert main(["pretrain", str(file), "--check", "--world-size", "64", "--json"]) == 0
    resolved = json.loads(capsys.readouterr().out)
    assert main(["plan", "budget", "--budget", "20000", "--gpu", "h100", "--nodes", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert resolved["steps"] == told["steps"]
    assert resolved["model"]["parameters"] == told["parameters"]["total"]
    assert resolved["tokens"] == pytest.approx(told["training"]["tokens"], rel=1e-3)
    assert told["dollars"] == pytest.approx(20_000, rel=0.01)
    assert resolved["settings"]["checkpoint"]["every"] == pytest.approx(
        min(told["save_every_seconds"] / told["layouts"]["best"][0]["seconds"], told["steps"]), rel=0.01
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h100"], "nothing is given to plan with"),
        (["--gpu", "h10", "--flops", "1e20"], "is not in the hardware table; did you mean"),
        (["--gpu", "h100", "--flops", "1e20", "--nodes", "0"], "0 GPUs are none; use 1 or more"),
        (["--gpu", "h100", "--flops", "1e20", "--price", "-3"], "--price = -3 is no price"),
        (["--gpu", "h100", "--flops", "1e20", "--law", "epok"], "epoch"),
    ],
)
def test_faults(words, message, capsys):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_options_of_other_groups_are_no_verbs(capsys):
    assert main(["data", "--budget", "1"]) == 2
    assert "is not a verb of data" in capsys.readouterr().err

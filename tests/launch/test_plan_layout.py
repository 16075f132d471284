"""`megaxf plan layout` and `megaxf plan scaling`: pages, JSON, pictures, run files, faults."""

import json
from pathlib import Path

import pytest
import yaml

from launch.megaxf import main

WORDS = ["llama3-8b", "--gpu", "h100", "--sequence-length", "8192"]


def test_layout_numbers_and_a_run_that_passes_the_check(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    words = ["plan", "layout", *WORDS, "--nodes", "8", "--batch", "256", "--many", "4"]
    assert main([*words, "--json", "-o", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(found["best"]), found["beside"], found["world_size"]] == [4, None, 64]
    assert found["candidates"] > found["predicted"] > found["counted"] >= 4
    first = found["best"][0]
    assert sum(first["items"].values()) == pytest.approx(first["seconds"])
    assert first["tokens_per_second_per_gpu"] == pytest.approx(256 * 8192 / first["seconds"] / 64)
    # Field report 102: model FLOPs a token by hand (no recomputation), over all GPUs and the dense peak.
    speed, flops = 256 * 8192 / first["seconds"], 51_471_187_968
    assert first["mfu"] == pytest.approx(flops * speed / (64 * 989.4e12))
    assert main(["pretrain", str(file), "--check", "--world-size", "64", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    for section in ("parallel", "engine", "train"):
        assert {key: value for key, value in first.items() if key in settings[section]}.items() <= settings[
            section
        ].items()
    # The file's own prediction and ledger are the search's.
    assert main(["plan", "throughput", str(file), "--gpu", "h100", "--nodes", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"] == pytest.approx(first["seconds"])
    assert main(["plan", "layout", *WORDS, "--nodes", "8", "--batch", "256", "--beside", str(file), "--json"]) == 0
    printed = capsys.readouterr()
    beside = json.loads(printed.out)["beside"]
    assert beside.pop("rank") == 1
    assert beside == first
    assert "note:" not in printed.err


def test_beside_says_what_it_leaves_out_and_refuses_another_model(run_file, capsys):
    words = ["--gpu", "h100", "--nodes", "1", "--batch", "64", "--beside"]
    changed = Path(run_file).with_name("changed.yaml")
    settings = yaml.safe_load(Path(run_file).read_text())
    settings["train"] |= {
        "precision": "fp32",
        "dropout": 0.1,
        "compile": True,
        "recompute": "full",
        "recompute_every": 2,
    }
    settings["parallel"] |= {"pipeline_layers": [17, 15]}
    changed.write_text(yaml.safe_dump(settings))
    assert main(["plan", "layout", *WORDS[:1], "--sequence-length", "8192", *words, str(changed)]) == 0
    note = capsys.readouterr().err
    assert (
        f"note: {changed} is compared without its train.precision = fp32, not bf16, train.recompute_every = 2" in note
    )
    for setting in (
        "train.dropout = 0.1, not 0.0",
        "train.compile = True",
        "parallel.pipeline_layers = [17, 15], not None",
    ):
        assert setting in note
    settings = yaml.safe_load(Path(run_file).read_text())
    settings["parallel"] = {}
    settings["engine"] = {"zero_stage": 2, "offload_optimizer": "cpu"}
    changed.write_text(yaml.safe_dump(settings))
    assert main(["plan", "layout", *WORDS[:1], "--sequence-length", "8192", *words, str(changed)]) == 0
    assert "without its engine.offload_optimizer = cpu, not none" in capsys.readouterr().err
    assert main(["plan", "layout", "llama2-7b", "--sequence-length", "2048", *words, run_file]) == 2
    assert "vocab_size = 128256 there, 32000 here" in capsys.readouterr().err


def test_layout_page(capsys):
    assert main(["plan", "layout", *WORDS, "--batch", "64", "--memory", "40", "--compile"]) == 0
    page = capsys.readouterr().out
    for text in ("Layouts on 8 x h100, 40.0 GiB each", " are allowed, ", "\n  10.", "What limits it: ", "optimizer"):
        assert text in page


def test_scaling_page_picture_and_numbers(tmp_path, capsys):
    image = tmp_path / "scaling.png"
    words = ["plan", "scaling", *WORDS, "--nodes", "4", "--batch", "64", "--tokens", "100b"]
    assert main([*words, "-o", str(image)]) == 0
    page = capsys.readouterr().out
    assert "100B tokens in steps of 524k on h100" in page
    assert image.read_bytes()[:4] == b"\x89PNG"
    assert main([*words, "--json", "--price", "2", "--save-seconds", "10"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["world_size"] for point in points] == [8, 16, 32]
    for point in points:
        work = 100e9 / point["tokens_per_second"] / 86_400
        assert point["days"] == pytest.approx(work / (1 - point["lost_share"]))
        assert point["dollars"] == pytest.approx(point["days"] * 24 * point["world_size"] * 2)


def test_a_run_that_never_ends_is_valid_json(capsys):
    """Where failures are more frequent than saves can be; JSON knows no Infinity."""
    words = ["plan", "scaling", *WORDS, "--nodes", "1", "--batch", "64", "--tokens", "1b", "--json"]
    assert main([*words, "--gpu-hours-between-failures", "1e-3"]) == 0
    (point,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (point["days"], point["dollars"], point["world_size"]) == (None, None, 8)


def test_sizes_without_a_layout_say_why(capsys):
    words = ["--gpu", "h100", "--batch", "64", "--tokens", "1b"]
    assert main(["plan", "scaling", "llama2-70b", *words, "--nodes", "4", "--json"]) == 0
    points = {point["world_size"]: point for point in json.loads(capsys.readouterr().out)}
    assert "layouts on 8 x h100 fits into 74.5 GiB; the smallest needs" in points[8]["reason"]
    assert points[32]["days"] > 0
    assert main(["plan", "scaling", "llama3-405b", *words, "--nodes", "1"]) == 2
    assert "layouts on 8 x h100 fits into" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "global_batch_size = 0 is too small; use a number above 0"),
        (["--batch", "8", "--nodes", "0"], "world_size = 0 is too small"),
        (["--batch", "8", "--many", "0"], "--many = 0 is too small; use 1 or more"),
        (["--batch", "8", "--tokens", "0", "-o", "run.yaml"], "--tokens = 0 is not a number above 0"),
        (["--batch", "8", "--tokens", "1b"], "--tokens is that of the run file, and has no effect without -o"),
        (
            ["--batch", "8", "--sequence-length", "8193"],
            "--sequence-length = 8,193 is more than model.max_position_embeddings = 8,192; use at most that",
        ),
        (["--batch", "8", "--hardware", "none.yaml"], "cannot be read as a hardware table"),
    ],
)
def test_faults(words, message, capsys):
    assert main(["plan", "layout", *WORDS, *words]) == 2
    assert message in capsys.readouterr().err


def test_faults_of_scaling(capsys):
    words = ["plan", "scaling", *WORDS, "--batch", "8", "--tokens", "1b"]
    assert main([*words, "--nodes", "0"]) == 2
    assert "--nodes = 0 is not a number above 0" in capsys.readouterr().err
    assert main([*words, "--nodes", "4", "--from", "64"]) == 2
    assert "--from = 64 is more than the 32 GPUs of --nodes = 4" in capsys.readouterr().err
    assert main([*words, "--nodes", "4", "--from", "0"]) == 2
    assert "--from = 0 is not a number above 0" in capsys.readouterr().err
    assert main([*words, "--nodes", "1", "--price", "-1"]) == 2
    assert "--price = -1 is not a number above 0" in capsys.readouterr().err

"""`megaxf plan throughput`, `hardware` and `calibrate`: their numbers, pages, pictures and faults."""

import json
from dataclasses import asdict

import pytest

from launch.megaxf import main
from megaxf.plan.throughput.hardware import find, write_profile
from megaxf.plan.throughput.step import ITEMS


def test_numbers_agree_with_one_another(run_file, capsys):
    assert main(["plan", "throughput", run_file, "--gpu", "h100", "--nodes", "2", "--price", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["world_size"] == 16
    assert list(found["items"]) == list(ITEMS)
    assert sum(found["items"].values()) == pytest.approx(found["seconds"])
    assert found["tokens_per_second_per_gpu"] == pytest.approx(64 * 8192 / found["seconds"] / 16)
    assert found["mfu"] == pytest.approx(found["model_tflops_per_gpu"] / 989.4)
    assert found["convention_mfu"] > found["mfu"]
    assert found["days"] == pytest.approx(1000 * found["seconds"] / 86400)
    assert found["dollars"] == pytest.approx(2 * found["gpu_hours"]) == pytest.approx(2 * 16 * 24 * found["days"])


def test_page_and_pictures(run_file, tmp_path, capsys):
    step, stages = tmp_path / "step.png", tmp_path / "stages.png"
    words = ["plan", "throughput", run_file, "--gpu", "h100", "-o", str(step), "--timeline", str(stages)]
    assert main(words) == 0
    page = capsys.readouterr().out
    for item in ("on 8 ranks of h100", "pipeline bubble", "What limits it", "GPU-hours", "Not counted:"):
        assert item in page
    assert step.read_bytes()[:4] == stages.read_bytes()[:4] == b"\x89PNG"


def test_a_profile_takes_the_place_of_a_name(run_file, tmp_path, capsys):
    path = tmp_path / "profile.json"
    write_profile(path, find("h100"))
    assert main(["plan", "throughput", run_file, "--profile", str(path), "--json"]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert main(["plan", "throughput", run_file, "--gpu", "h100", "--json"]) == 0
    assert profile == json.loads(capsys.readouterr().out)


def test_the_hardware_table(tmp_path, capsys):
    assert main(["plan", "hardware"]) == 0
    page = capsys.readouterr().out
    assert "h100" in page
    assert "2.95" in page
    assert main(["plan", "hardware", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["h100"] == asdict(find("h100"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h1000"], "did you mean h100"),
        (["--gpu", "rtx4090", "--nodes", "2"], "has no network for rtx4090"),
        (["--gpu", "h100", "--nodes", "0"], "--nodes = 0 is not a number of nodes"),
        (["--gpu", "h100", "--price", "-1"], "--price = -1.0 is no price"),
        (["--gpu", "h100", "--world-size", "6"], "does not divide the number of processes, 6"),
        (["--profile", "nowhere.json"], "not a profile that megaxf plan calibrate wrote"),
        (["--gpu", "h100", "--hardware", "nowhere.yaml"], "cannot be read as a hardware table"),
        (
            ["--gpu", "h100", "parallel.pipeline_parallel_size=1", "--timeline", "stages.png"],
            "parallel.pipeline_parallel_size = 1; use -o",
        ),
    ],
)
def test_faults(run_file, words, message, capsys):
    assert main(["plan", "throughput", run_file, *words]) == 2
    assert message in capsys.readouterr().err

"""`megaxf plan memory`: its numbers, its page, its picture, its faults."""

import json

import pytest

from launch.megaxf import main
from megaxf.plan.memory.rows import GROUPS, STEP


def test_numbers_add_up(run_file, capsys):
    assert main(["plan", "memory", run_file, "--world-size", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stages = found["stages"]
    assert found["advice"] is None
    assert [stage["stage"] for stage in stages] == [0, 1]
    for stage in stages:
        assert {row["group"] for row in stage["rows"]} <= set(GROUPS)
        counted = [row for row in stage["rows"] if row["group"] != "allowance"]
        moments = {m: sum(row["bytes"] for row in counted if m in row["when"]) for m in STEP}
        assert moments == stage["moments"]
        assert stage["peak"] == max(moments.values()) == moments[stage["moment"]]
        assert stage["host"] == stage["nvme"] == 0


def test_page_and_picture(run_file, tmp_path, capsys):
    image = tmp_path / "memory.png"
    words = [
        "plan",
        "memory",
        run_file,
        "train.recompute=none",
        "--world-size",
        "8",
        "--memory",
        "40",
        "-o",
        str(image),
    ]
    assert main(words) == 0
    page = capsys.readouterr().out
    assert "stage 0" in page
    assert "does not fit by" in page
    assert "Why it does not fit: a rank of stage 0 needs" in page
    assert "The cheapest ways to make it fit, each a valid run; time as predicted for h100" in page
    for item in ("gate, silu, up and product", "masters", "in the optimizer's step", "Not counted:"):
        assert item in page
    assert image.read_bytes()[:4] == b"\x89PNG"


def test_faults(run_file, capsys):
    assert main(["plan", "memory", run_file, "--world-size", "6"]) == 2
    assert "does not divide the number of processes, 6" in capsys.readouterr().err
    assert main(["plan", "memory", run_file, "--world-size", "8", "--memory", "0"]) == 2
    assert "--memory = 0.0 is no size; use a positive number of GiB" in capsys.readouterr().err


def test_advice_is_taken(run_file, capsys):
    """The settings that it names, put behind the file, make the run fit with the figures that it gives."""
    words = ["plan", "memory", run_file, "--world-size", "8", "--json", "--memory"]
    assert main([*words, "40"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert not advice["fits"]
    assert len(advice["ways"]) == 3
    for way in advice["ways"]:
        assert main([*words, "40", *way["text"].split()]) == 0
        taken = json.loads(capsys.readouterr().out)["advice"]
        assert taken["fits"]
        assert taken["need"] == way["need"] <= 40 * 2**30
        assert taken["seconds"] == pytest.approx(way["seconds"])
        assert way["extra_time"] == pytest.approx(taken["seconds"] / advice["seconds"] - 1)


def test_memory_of_a_gpu(run_file, capsys):
    assert main(["plan", "memory", run_file, "--world-size", "8", "--gpu", "h200", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice["limit"] == 141e9
    assert advice["fits"]
    assert advice["ways"] == []
    assert main(["plan", "memory", run_file, "--world-size", "8", "--gpu", "h20"]) == 2
    assert "did you mean h200" in capsys.readouterr().err

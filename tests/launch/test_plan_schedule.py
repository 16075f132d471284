"""`megaxf plan schedule`: its numbers, its picture, its faults."""

import json

import pytest

from launch.megaxf import main


def test_numbers_and_picture(capsys, tmp_path):
    image = tmp_path / "schedules.png"
    assert main(["plan", "schedule", "--stages", "4", "--micro-batches", "8", "--json", "-o", str(image)]) == 0
    found = {entry["schedule"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["1f1b"]["bubble"] == pytest.approx(3 / 11)
    assert found["interleaved"]["bubble"] == pytest.approx(3 / 19)
    assert found["dualpipev"]["one_part_bubble"] == pytest.approx(3 / 11)
    assert image.read_bytes()[:4] == b"\x89PNG"


def test_schedules_that_do_not_fit_are_left_out_unless_asked_for(capsys):
    assert main(["plan", "schedule", "--micro-batches", "5"]) == 0
    output = capsys.readouterr()
    assert [line.split()[0] for line in output.out.splitlines()[3:]] == ["1f1b"]
    assert output.err.count("note: left out: ") == 2
    assert main(["plan", "schedule", "interleaved", "--micro-batches", "5"]) == 2
    assert "interleaved needs a multiple of 4 micro-batches, got 5" in capsys.readouterr().err


def test_all_faults_at_once(capsys):
    words = ["plan", "schedule", "1f2b", "--stages", "1", "--micro-batches", "0", "--forward", "0", "--backward", "nan"]
    assert main(words) == 2
    error = capsys.readouterr().err
    for sentence in (
        "1f2b is not a schedule; use one of 1f1b, interleaved, dualpipev",
        "--stages = 1 is too few; use 2 or more",
        "--micro-batches = 0 is too few; use 1 or more",
        "--forward = 0.0 is not a time; use a positive number",
        "--backward = nan is not a time; use a positive number",
    ):
        assert f"  - {sentence}\n" in error

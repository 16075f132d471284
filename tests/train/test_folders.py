"""Run folders and folders of checkpoints that cannot be used are named before the first step; damage ends no start."""

import json
from pathlib import Path

import fsspec
import pytest

from megaxf.config_errors import ConfigError
from megaxf.train.guards import Outcome
from tests.train.kit import column, start


def test_folders_that_are_not_of_a_run(make, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "job-12.out").write_text("the batch system's")
    assert start(make(), stop_after=0)[0] == Outcome.STOPPED
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match=r"run_folder = .*other holds thesis.tex and no config.yaml"):
        start(make(run_folder=str(tmp_path / "other")))
    with pytest.raises(ConfigError, match=r"is a file; name another folder"):
        start(make(run_folder=str(tmp_path / "other" / "thesis.tex")))


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("data/manifest.json", "is a file; name another folder"),
        ("data/manifest.json/deeper", "lies below .*manifest.json, a file; name another folder"),
        ("/proc/nowhere", "cannot be used: /proc/nowhere cannot be made: No such file or directory"),
        ("s3://nowhere/run", "cannot be used: s3://nowhere/run/.probe-.* cannot be written"),
    ],
)
def test_checkpoints_that_cannot_be_written_are_told_before_the_first_step(
    make, tmp_path, endpoint, monkeypatch, place, sentence
):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
    place = place if "://" in place else str(tmp_path / place)
    run = make(checkpoint={"folder": place})
    with pytest.raises(ConfigError, match=f"checkpoint.folder = {place} {sentence}"):
        start(run)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_trying_the_folder_of_checkpoints_leaves_nothing_there(make, tmp_path):
    start(make(checkpoint={"folder": str(tmp_path / "own" / "place")}), stop_after=0)
    assert list((tmp_path / "own" / "place").iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 30, b"\xff[", b"{}"])
def test_damaged_records_of_the_starts_before_end_no_start(make, damage):
    """As a crash of the machine leaves small files."""
    run = make(train={"steps": 3})
    folder = Path(run.run_folder)
    start(run, stop_after=1)
    for name in ("environment.json", "metrics.jsonl"):
        (folder / name).write_bytes(
            (damage if name.endswith(".json") else (folder / name).read_bytes() + damage) + b"\n"
        )
    outcome, said = start(run)
    assert outcome == Outcome.DONE and column(run, "step") == [1, 2, 3]
    assert [one["from_step"] for one in json.loads((folder / "environment.json").read_text())] == [1]
    assert sum("environment.json is damaged, so it no longer tells" in one for one in said) == 1
    assert sum("metrics.jsonl:3 is damaged and passed over" in one for one in said) == 1


@pytest.mark.parametrize("damage", [b"", b"\xff", b"5"])
def test_a_damaged_configuration_of_the_run_folder_is_named(make, damage):
    run = make()
    start(run, stop_after=0)
    (Path(run.run_folder) / "config.yaml").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"config.yaml: 1 error\n.*is damaged: it holds no settings; restore it"):
        start(run)

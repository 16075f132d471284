"""The report of a run says what its folder holds, while it runs too."""

import json
import shutil
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from launch.megaxf import main
from megaxf.config import change
from megaxf.train.breakdown import PARTS
from megaxf.train.metrics import read_records
from megaxf.train.report.charts import HEAP, _times, picture
from megaxf.train.report.facts import RECENT, read
from megaxf.train.report.page import page
from tests.train.kit import start, tiny_run, write_data

FINDING = {
    "kind": "guard",
    "step": 5,
    "at_step": 5,
    "found": "spike",
    "action": "skip",
    "loss": 9.5,
    "why": "<6 MAD>",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 8 steps on two sources, started twice, in which guards have found something."""
    tmp = tmp_path_factory.mktemp("report")
    for seed, name in enumerate("ab"):
        write_data(tmp / name, rows=64, seed=seed)
    sources = {"a": {"folder": str(tmp / "a"), "weight": 3}, "b": {"folder": str(tmp / "b"), "weight": 1}}
    run = tiny_run(tmp, data={"sources": sources, "sequence_length": 16}, train={"steps": 8}, evaluate={"every": 4})
    start(run, stop_after=5)
    start(run)
    with open(tmp / "run" / "metrics.jsonl", "a") as file:
        file.write(json.dumps(FINDING) + '\n{"kind": "train", "st')  # a line that is being written
    return tmp / "run"


def test_the_numbers_are_those_of_the_records(folder):
    facts = read(folder, dollars_per_hour=2.5)
    records = [record for record in read_records(folder / "metrics.jsonl") if record["kind"] == "train"]
    assert [record["step"] for record in records] == list(range(1, 9))
    said = facts.summary()
    assert (said["step"], said["steps"], said["starts"], said["findings"]) == (8, 8, 2, 1)
    assert said["loss"] == records[-1]["loss"] and said["tokens"] == records[-1]["tokens"]
    seconds = sum(record["seconds"] for record in records)
    assert said["trained_seconds"] == pytest.approx(seconds)
    assert said["dollars"] == pytest.approx(2.5 * seconds / 3600)
    assert said["seconds_left"] == 0
    assert facts.restarts == [5]
    assert sum(said["tokens_of_sources"].values()) == said["tokens"]
    assert said["tokens_of_sources"]["a"] == 3 * said["tokens_of_sources"]["b"]
    last = [record for record in read_records(folder / "metrics.jsonl") if record["kind"] == "evaluation"][-2:]
    assert said["validation"] == {record["source"]: record["loss"] for record in last}


def test_without_the_environment_the_devices_are_not_known(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "environment.json").write_text("")
    facts = read(tmp_path / "run")
    assert (facts.devices, facts.hosts, facts.step) == ([], [], 8)


def test_what_is_to_come_is_at_the_pace_of_the_last_steps(folder):
    facts = read(folder, dollars_per_hour=1.0)
    longer = change(facts.run, {"train.steps": 108})
    assert longer
    facts = replace(facts, run=longer)
    pace = statistics.median(record["seconds"] for record in facts.steps[-RECENT:])
    assert facts.seconds_left == pytest.approx(100 * pace)
    assert facts.summary()["dollars_left"] == pytest.approx(100 * pace / 3600)


def test_what_the_time_went_for_fills_the_steps(folder):
    facts = read(folder)
    recent = [record["times"] for record in facts.steps]
    whole = sum(sum(times.values()) for times in recent)
    shares = facts.summary()["times"]
    assert shares["optimizer"] == pytest.approx(sum(times["optimizer"] for times in recent) / whole)
    assert sum(shares.values()) == pytest.approx(1)
    assert f"optimizer {shares['optimizer']:.1%}" in page(facts, b"")
    axes = Figure().add_subplot()
    _times(axes, facts)
    heights = [heap.get_paths()[0].vertices[:, 1].max() for heap in axes.collections]
    assert len(heights) == len(shares) and heights == sorted(heights) and heights[-1] == pytest.approx(1)
    before = replace(facts, steps=[{key: v for key, v in one.items() if key != "times"} for one in facts.steps])
    assert before.summary()["times"] == {} and picture(before), "a run of an older version"


def test_neighbours_in_the_heap_of_times_differ_without_colour_too():
    lightness = [sum(w * c for w, c in zip((0.3, 0.59, 0.11), to_rgb(colour), strict=True)) for colour in HEAP]
    assert len(HEAP) == len(PARTS) + 1 and min(abs(a - b) for a, b in pairwise(lightness)) > 0.1, lightness


def test_the_page_has_the_picture_and_nothing_of_the_run_as_markup(folder):
    facts = read(folder)
    image = picture(facts)
    assert image.startswith(b"\x89PNG") and len(image) > 20_000
    text = page(facts, image)
    assert text.count("<img ") == 1 and "data:image/png;base64," in text
    assert "&lt;6 MAD&gt;" in text and "<6 MAD>" not in text
    assert "step 8 of 8" in text and "cost" not in text


def test_the_command(folder, tmp_path, capsys):
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html"), "--gpu", "h100"]) == 0
    said = capsys.readouterr().out
    assert "cost" in said and "time of late went for  data" in said and "$" in (tmp_path / "page.html").read_text()
    assert main(["report", str(folder), "-o", str(tmp_path / "page.png")]) == 0
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["report", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["after_step"] for one in said["starts"]] == [0, 5] and said["findings"][0]["found"] == "spike"
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["RUN", "-o", "page.pdf"],
        ["RUN", "-o", "nowhere/page.html"],
        ["RUN", "--gpu", "h100", "--dollars-per-hour", "1"],
        ["RUN", "--json", "--dollars-per-hour", "nan"],
        ["RUN", "--json", "--dollars-per-hour", "inf"],
        ["RUN", "--dollars-per-hour", "0.0"],
    ],
)
def test_faults(folder, words, capsys, monkeypatch):
    monkeypatch.setattr("megaxf.train.report.charts.picture", None)  # They are told before the work.
    words = [str(folder) if word == "RUN" else word for word in words]
    try:
        code = main(["report", *words])
    except SystemExit as left:
        code = left.code
    assert code == 2
    said = capsys.readouterr().err
    assert words[-1] in said or "not allowed with" in said

"""A window of steps is profiled: a trace for each rank that is named, with what happened in it, and nothing beyond."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from launch.megaxf import main
from megaxf.config_errors import ConfigError
from megaxf.models.matmul import by_onednn
from tests.train.kit import assert_same_end, start


def traces(run):
    """Name of each trace -> names of its events and how often they are there."""
    found = {}
    for path in sorted((Path(run.run_folder) / "profile").glob("*")):
        with gzip.open(path) as file:
            names = [event.get("name") for event in json.load(file)["traceEvents"]]
        found[path.name] = {name: names.count(name) for name in names}
    return found


def test_the_trace_has_the_operations_and_the_parts_of_the_steps_asked_for(make):
    run = make(profile={"steps": "3:4"}, train={"steps": 6})
    _, said = start(run)
    ((name, events),) = traces(run).items()
    assert name == "steps-3-4-rank-00000.json.gz"
    (sentence,) = (one for one in said if "profiled" in one)
    assert "steps 3 to 4" in sentence and str(Path(run.run_folder) / "profile" / name) in sentence
    assert {event for event in events if re.fullmatch(r"step \d+", str(event))} == {"step 3", "step 4"}
    # Two micro-batches of 2 rows a step.
    expected = {"data": 2, "forward": 4, "backward": 4, "optimizer": 2}
    assert {part: events[part] for part in expected} == expected
    # Of oneDNN's products some releases of torch show the operator, all the autograd function.
    product = "_OnednnLinear" if by_onednn(torch.zeros(1)) else "aten::mm"
    assert product in events and "aten::_fused_adamw_" in events
    plain = make(run_folder=run.run_folder + "-plain", train={"steps": 6})
    start(plain)
    assert not traces(plain)
    assert_same_end(run, plain)


def test_a_run_that_goes_on_profiles_what_is_left_of_the_window(make):
    run = make(profile={"steps": "3:5"}, train={"steps": 8}, checkpoint={"every": 1})
    start(run, stop_after=3)
    start(run, stop_after=1)
    assert list(traces(run)) == ["steps-3-3-rank-00000.json.gz", "steps-4-4-rank-00000.json.gz"]
    start(run, stop_after=2)
    before = list(traces(run))
    _, said = start(run)
    assert list(traces(run)) == before == [*before[:2], "steps-5-5-rank-00000.json.gz"]
    assert not any("profiled" in one for one in said), "the window is over"


def said_of(run):
    return start(run)[1]


def test_the_ranks_that_are_named(make, ranks2):
    run = make(profile={"steps": "2:2", "ranks": [1]}, train={"steps": 3}, engine={"zero_stage": 1})
    said, _ = ranks2(said_of, run)
    ((name, events),) = traces(run).items()
    assert name == "steps-2-2-rank-00001.json.gz" and any(name in one for one in said)
    assert events["communication"] > 0 and "gloo:all_reduce" in events


def test_a_full_disk_ends_no_run(make):
    run = make(profile={"steps": "2:2"}, train={"steps": 3})
    Path(run.run_folder).mkdir()
    (Path(run.run_folder) / "config.yaml").write_text("{}")
    (Path(run.run_folder) / "profile").write_text("in the way")
    _, said = start(run)
    assert any("rank-00000.json.gz is not written" in one for one in said)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"steps": "5:3"}, "has no step in it"),
        ({"steps": "0:3"}, "the first is 1 or more"),
        ({"steps": "ten"}, "use such as 10:12"),
        ({"steps": 10}, "profile.steps = 10 is not a first and a last step"),
        ({"steps": "10:13"}, "goes beyond train.steps = 12"),
        ({"ranks": [1]}, "no effect without profile.steps"),
        ({"steps": "1:2", "ranks": []}, "profile.ranks"),
    ],
)
def test_bad_windows_are_refused(make, profile, words):
    with pytest.raises(ConfigError, match=words):
        make(profile=profile)


def test_a_rank_that_is_not_there_is_refused_by_check(make, tmp_path, capsys):
    from megaxf.config import to_yaml

    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(make()))
    words = ["pretrain", str(file), "profile.steps=10:12", "--check", "--world-size", "2"]
    assert main([*words, "profile.ranks=[0, 2]"]) == 2
    assert "names rank 2, and there are 2, counted from 0" in capsys.readouterr().err
    assert main([*words, "profile.ranks=[0, 1]"]) == 0

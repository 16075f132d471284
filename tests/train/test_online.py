"""Training on text that is tokenised meanwhile: the losses of prepared data, and exact over stops."""

import json
from pathlib import Path

import pytest

from data_pipeline.errors import DataError
from megaxf.config import validate
from megaxf.config_errors import ConfigError
from megaxf.train.guards import Outcome
from tests.data_pipeline.kit import byte_tokenizer, write_jsonl
from tests.train.kit import MODEL, assert_same_end, column, start, tiny_run


@pytest.fixture
def settings(tmp_path):
    texts = [f"{number} times {number % 7} is {number * (number % 7)}" for number in range(200)]
    source = {
        "dataset": write_jsonl(tmp_path / "a.jsonl", texts),
        "tokenizer": str(byte_tokenizer(tmp_path / "tokenizer")),
    }
    return {"data": {"sources": {"text": source}}, "model": {**MODEL, "vocab_size": 257}}


def test_a_stop_changes_nothing(settings, tmp_path):
    straight = tiny_run(tmp_path / "x", **settings)
    stopped = tiny_run(tmp_path / "y", **settings, checkpoint={"every": 5})
    assert start(straight)[0] == Outcome.DONE
    outcome, said = start(stopped, stop_after=5)
    assert outcome == Outcome.STOPPED
    assert any("tokenised while training" in sentence for sentence in said)
    assert start(stopped)[0] == Outcome.DONE
    assert_same_end(straight, stopped)
    saved = Path(stopped.run_folder) / "checkpoints/step-00000012"
    assert saved.exists() and list(saved.rglob("tokenizer.json"))


def test_two_ranks_share_the_rows_and_one_goes_on_alone(settings, tmp_path, run_on):
    alone, shared = tiny_run(tmp_path / "x", **settings), tiny_run(tmp_path / "y", **settings)
    start(alone)
    assert [outcome for outcome, _ in run_on(2, start, shared, 5, timeout=400)] == [Outcome.STOPPED] * 2
    assert start(shared)[0] == Outcome.DONE
    assert column(shared, "loss") == pytest.approx(column(alone, "loss"), rel=1e-5)
    assert column(shared, "counted_tokens") == column(alone, "counted_tokens")


def test_other_text_is_said_at_a_resume(settings, tmp_path):
    run = tiny_run(tmp_path, **settings)
    start(run, stop_after=3)
    write_jsonl(tmp_path / "a.jsonl", ["other text"] * 300)
    assert any("holds other data" in sentence for sentence in start(run)[1])


def test_a_small_vocabulary_is_found_before_the_start(settings, tmp_path):
    with pytest.raises(DataError, match=r"vocabulary of 257, but model\.vocab_size = 61"):
        start(tiny_run(tmp_path, data=settings["data"]))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"packing": "best_fit"}, "does not go with data.packing; use megaxf prepare"),
        ({"skip_steps": [[2, 3]]}, "does not go with data.skip_steps"),
        ({"sources": {"b": {"folder": "x"}}}, "does not go with other sources"),
        ({"sources": {"text": {"folder": "x"}}}, "give a folder made by megaxf prepare, or a dataset"),
        ({"sources": {"text": {"tokenizer": None}}}, "give its tokenizer"),
        ({"sources": {"b": {"folder": "x", "streaming": True}}}, "streaming: no effect on a folder"),
    ],
)
def test_what_does_not_go_with_it_is_refused(settings, tmp_path, data, problem):
    raw = json.loads(tiny_run(tmp_path, **settings).model_dump_json())
    for name, source in data.pop("sources", {}).items():
        raw["data"]["sources"][name] = raw["data"]["sources"].get(name, {}) | source
    raw["data"] |= data
    with pytest.raises(ConfigError, match=problem):
        validate(raw, "tests")

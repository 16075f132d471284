"""Run folders as points of a scaling law."""

import json

import numpy as np
import pytest

from megaxf.config import to_yaml
from megaxf.plan.errors import PlanError
from megaxf.plan.fit.runs import results
from megaxf.plan.parameters import count
from megaxf.train.curves import read_folder
from tests.train.kit import start, tiny_run, write_data


def test_a_real_run(tmp_path):
    """The sizes and losses that the run itself recorded; the end is the validation loss, over all its tokens."""
    write_data(tmp_path / "data")
    run = tiny_run(tmp_path)
    start(run)
    (curve,), unfinished = read_folder(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    end = next(line for line in lines if line["kind"] == "evaluation" and line["step"] == 12)
    assert (curve.name, curve.parameters, unfinished) == ("run", count(run.model).total, [])
    assert curve.tokens.tolist() == [64 * step for step in range(1, 13)]
    assert curve.losses[-1] == pytest.approx(np.mean([line["loss"] for line in steps[-10:]]))
    assert results([curve]).loss.tolist() == pytest.approx([end["loss"]])


def folder(tmp_path, name, records):
    run = tiny_run(tmp_path)
    place = tmp_path / "runs" / name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(to_yaml(run))
    (place / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def steps(last):
    return [{"kind": "train", "step": n, "tokens": 64 * n, "loss": 5.0 - 0.1 * n} for n in range(1, last + 1)]


def test_several_sources_and_runs(tmp_path):
    """Sources weigh by their tokens; one without validation has its training losses; unfinished ones are named."""
    ends = [
        {"kind": "evaluation", "step": 12, "tokens": 768, "source": "a", "loss": 4.0, "counted_tokens": 300},
        {"kind": "evaluation", "step": 12, "tokens": 768, "source": "b", "loss": 2.0, "counted_tokens": 100},
        {"kind": "evaluation", "step": 6, "tokens": 768, "source": "b", "loss": 9.0, "counted_tokens": 100},
    ]
    # As train/loop.py writes them: what guards found of ranks has no loss, what they found of a step has its own.
    guards = [
        {"kind": "guard", "step": 12, "found": "stragglers", "action": "record", "median": 1.0, "slow": []},
        {"kind": "guard", "step": 12, "found": "replicas", "action": "stop", "why": "ranks differ"},
        {"kind": "guard", "step": 12, "found": "spike", "action": "record", "loss": 99.0},
    ]
    folder(tmp_path, "a", steps(12) + guards + ends)
    folder(tmp_path, "b", steps(12) + guards)
    folder(tmp_path, "c", steps(11))
    curves, unfinished = read_folder(tmp_path / "runs")
    assert [curve.name for curve in curves] == ["a", "b"] and unfinished == ["c"]
    assert results(curves).loss == pytest.approx([3.5, np.mean([5.0 - 0.1 * n for n in range(3, 13)])])


def test_no_run(tmp_path):
    with pytest.raises(PlanError, match="holds no run: a folder with config"):
        read_folder(tmp_path)

"""A run folder that cannot be written any more costs no step: what was learned is saved where checkpoints lie."""

import errno
import json
from pathlib import Path

import pytest

from megaxf.config_errors import ConfigError
from megaxf.train import lines, loop, plots
from megaxf.train.guards import Outcome
from megaxf.train.metrics import last_step
from tests.train.kit import assert_same_end, checkpoints, column, start

FULL = OSError(errno.ENOSPC, "No space left on device")


class Full:
    """A file whose disk takes so many lines."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        self.room -= 1
        self.file.write(data if self.room >= 0 else data[:9])

    def flush(self):
        self.file.flush()
        if self.room < 0:
            raise FULL

    def close(self):
        self.file.close()
        if self.room < 0:
            raise FULL


def fill(monkeypatch, name, room):
    """The disk is full after so many lines of the file of that name."""
    plain = Path.open

    def opened(self, *mode, **more):
        file = plain(self, *mode, **more)
        return Full(file, room) if (self.name, mode) == (name, ("ab",)) else file

    monkeypatch.setattr(Path, "open", opened)


def test_the_first_error_is_kept_and_nothing_follows_a_torn_line(tmp_path, monkeypatch):
    fill(monkeypatch, "some.jsonl", 1)
    written = lines.Lines(tmp_path / "some.jsonl", durable=True)
    for step in (1, 2, 3):
        written.add({"step": step})
        assert bool(written.fault) == (step > 1)
    written.close()
    assert (tmp_path / "some.jsonl").read_text() == '{"step": 1}\n{"step": '
    told = (
        "cannot be written: [Errno 28] No space left on device; mend that, and the same command goes on from the last"
    )
    assert str(written.fault) == f"{tmp_path / 'some.jsonl'}: 1 error\n  - {told} checkpoint"


@pytest.mark.parametrize(("name", "room", "saved"), [("metrics.jsonl", 6, 6), ("positions.jsonl", 1, 4)])
def test_what_was_learned_is_saved_before_the_run_ends(make, name, room, saved):
    """6 lines of the metrics are the evaluation and 5 steps; the second of the positions is that of a checkpoint."""
    run, straight = make(checkpoint={"every": 4, "keep_last": 9}), make(run_folder=make().run_folder + "-straight")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=rf"{name}: 1 error\n.*No space left"):
        fill(patch, name, room)
        start(run)
    assert checkpoints(run)[-1] == saved
    assert start(run)[0] == Outcome.DONE
    start(straight)
    for one in (run, straight):  # the line of step 6 is lost
        lost = [saved] if name == "metrics.jsonl" and one is run else []
        assert column(one, "step") == [step for step in range(1, 13) if step not in lost]
    if name == "positions.jsonl":
        assert_same_end(run, straight)


def test_the_last_steps_lines_are_missed_too(make):
    run = make(train={"steps": 3}, evaluate={"every": 100})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=r"metrics.jsonl: 1 error"):
        fill(patch, "metrics.jsonl", 4)
        start(run)
    assert checkpoints(run) == [3] and last_step(Path(run.run_folder) / "metrics.jsonl") == 3


def started(run):
    with pytest.MonkeyPatch.context() as patch:
        fill(patch, "metrics.jsonl", 3)
        with pytest.raises(ConfigError) as error:
            start(run)
        return str(error.value)


def test_both_ranks_end_alike(make, run_on):
    run = make()
    one, other = run_on(2, started, run)
    assert one == other and "No space left on device" in one
    assert checkpoints(run) == [3]


def test_a_start_that_cannot_rewrite_the_records_leaves_them(make, monkeypatch):
    run = make()
    start(run, stop_after=2)
    folder = Path(run.run_folder)
    before = (folder / "metrics.jsonl").read_bytes()

    def full(path, data):
        (path.parent / "begun").write_bytes(data)
        raise FULL

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=r"run: 1 error\n.*No space left"):
        patch.setattr("megaxf.train.metrics.write_whole", full)
        start(run)
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert json.loads((folder / "positions.jsonl").read_text().splitlines()[-1])["kind"] == "start"


def test_a_curve_that_cannot_be_drawn_is_said(make, monkeypatch):
    def full(path, data):
        raise FULL

    monkeypatch.setattr(plots, "write_whole", full)
    run = make(train={"steps": 4})
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert any(one.endswith("loss.png is not drawn: [Errno 28] No space left on device") for one in said)


def test_what_ends_beside_the_loop_ends_each_by_itself(make, monkeypatch):
    """As where a trace cannot be written, or drawing fails."""
    closed = []
    monkeypatch.setattr(loop.Recorder, "close", lambda self: closed.append("recorder"))
    monkeypatch.setattr(loop.Positions, "end", lambda self, point: closed.append("positions"))

    def fail(*given):
        raise RuntimeError("no drawing today")

    monkeypatch.setattr(loop, "plot_loss", fail)
    with pytest.raises(RuntimeError, match="no drawing today"):
        start(make(train={"steps": 4}))
    assert closed == ["recorder", "positions"]

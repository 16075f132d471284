"""Checkpoints that are written while training goes on (field reports 77 to 79)."""

import threading
from pathlib import Path

import pytest

from megaxf.checkpoint import CheckpointError, find_latest, keeping, read_weights
from megaxf.checkpoint.tensors import BoxWriter
from megaxf.train.guards import Outcome
from tests.train.kit import assert_same_end, checkpoints, column, start, tiny_run, write_data


class Gate:
    """Holds the thread that writes the checkpoint of one step, until the run asks about a later step."""

    def __init__(self, monkeypatch, opens_at, fault=None):
        self.event, self.opens_at, self.fault, self.asked, self.held = threading.Event(), opens_at, fault, 0, []
        put = BoxWriter.put

        def held(writer, *box):
            if threading.current_thread() is not threading.main_thread():
                self.held.append(box[0])
                assert self.event.wait(60)
                if self.fault:
                    raise self.fault
            put(writer, *box)

        monkeypatch.setattr(BoxWriter, "put", held)

    def stop(self):
        """The question after each step: step s is complete at the s + 1st."""
        self.asked += 1
        if self.asked > self.opens_at:
            self.event.set()
        return False


def run_through(run, gate, stop=None):
    """Train with the gate: (outcome, what was said)."""
    from tests.train import kit

    report = kit.Heard(run.train.steps)
    mesh = kit.tiny_mesh(run)
    outcome = kit.train(run, mesh, kit.torch.device("cpu"), stop or gate.stop, report)
    return outcome, report.said


@pytest.fixture
def saving(tmp_path):
    """`saving(asynchronous=False, ...)`: a run in a folder of its own, all on the same data."""
    write_data(tmp_path / "data")

    def make(asynchronous=True, **settings):
        checkpoint = {"every": 3, "keep_last": 9, "asynchronous": asynchronous, **settings}
        return tiny_run(tmp_path, run_folder=str(tmp_path / f"run-{asynchronous}"), checkpoint=checkpoint)

    return make


def test_the_copy_is_of_the_step_that_was_saved(saving, monkeypatch):
    """The writer of step 3 is held until step 5 is over; then its numbers are still those of step 3."""
    beside, between = saving(), saving(asynchronous=False)
    start(between)
    gate = Gate(monkeypatch, opens_at=5)
    outcome, said = run_through(beside, gate)
    assert outcome == Outcome.DONE and gate.held
    assert_same_end(beside, between)
    assert checkpoints(beside) == checkpoints(between) == [3, 6, 9, 12]
    for step in (3, 6, 9, 12):
        one, other = (
            dict(read_weights(Path(run.run_folder) / f"checkpoints/step-{step:08d}")) for run in (beside, between)
        )
        assert all((one[name] == other[name]).all() for name in other), step
    assert any(line.startswith("step 3 is copied in") for line in said)
    assert sum("beside training" in line for line in said) == 3, "the last one has no step beside it"


def test_busy_skips_or_waits(saving, monkeypatch):
    run = saving(every=1, when_busy="skip")
    _, said = run_through(run, Gate(monkeypatch, opens_at=4))
    skipped = [int(line.split()[4].strip(":")) for line in said if line.startswith("no checkpoint of step")]
    assert {2, 3, 4} <= set(skipped) and 12 not in skipped
    assert checkpoints(run) == sorted(set(range(1, 13)) - set(skipped))


def test_while_a_checkpoint_is_written_the_one_before_is_the_latest(saving, monkeypatch):
    """And it stays so where the process is killed then: nothing else of the folder is looked at."""
    run = saving()
    folder, latest = Path(run.run_folder) / "checkpoints", {}
    gate = Gate(monkeypatch, opens_at=8)

    def stop():
        latest[gate.asked] = find_latest(folder)
        gate.stop()
        if gate.asked == 4:
            gate.event.clear()
        return gate.asked > 8

    gate.opens_at = 0  # step 3 passes, step 6 is held
    outcome, _ = run_through(run, gate, stop)
    assert outcome == Outcome.STOPPED
    assert checkpoints(run) == [3, 6, 8], "a stop waits for what is being written"


def test_a_failing_thread_ends_the_run_and_leaves_the_earlier_checkpoint(saving, monkeypatch):
    run = saving(keep_last=1)
    gate = Gate(monkeypatch, opens_at=0)

    def stop():
        gate.fault = OSError(28, "No space left on device") if gate.asked >= 5 else None
        return gate.stop()

    with pytest.raises(CheckpointError, match=r"step-00000006 was not saved, earlier .* No space left on device"):
        run_through(run, gate, stop)
    assert 6 <= column(run, "step")[-1] < 9, "at one of the next steps"
    assert [path.name for path in (Path(run.run_folder) / "checkpoints").iterdir()] == ["step-00000003"]


def test_no_checkpoint_goes_before_the_new_one_is_read_back(saving, monkeypatch):
    run = saving(keep_last=1)
    publish = keeping.publish

    def spoil(working, final, entries):
        publish(working, final, entries)
        if final.name.endswith("6"):
            path = final / "tensors/__0_1.distcp"
            path.write_bytes(path.read_bytes()[:-1] + b"x")

    monkeypatch.setattr(keeping, "publish", spoil)
    with pytest.raises(CheckpointError, match=r"step-00000006/tensors/__0_1.distcp is not what was written"):
        start(run)
    assert checkpoints(run) == [3, 6]
    monkeypatch.undo()
    outcome, said = start(run)
    assert outcome == Outcome.DONE and any("going back to the checkpoint before it" in line for line in said)


def test_settings_without_effect_are_refused(saving):
    with pytest.raises(ValueError, match=r"checkpoint.when_busy has no effect with checkpoint.asynchronous = false"):
        saving(asynchronous=False, when_busy="skip")

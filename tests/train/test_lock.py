"""A run folder is one start's at a time; the lock ends with the process that has it."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from megaxf.config_errors import ConfigError
from megaxf.train import lock
from megaxf.train.guards import Outcome
from megaxf.train.lock import LOCK, Lock
from tests.train.kit import checkpoints, column, start

HOLD = """
import sys, time
from pathlib import Path
from megaxf.train.lock import Lock
with Lock(Path(sys.argv[1]), print) as lock:
    lock.take()
    lock.sign()
    print("has it", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.0)


def test_a_second_start_is_refused_until_the_first_is_killed(make, monkeypatch):
    run = make()
    start(run, stop_after=2)
    folder = Path(run.run_folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "has it\n"
        with pytest.raises(ConfigError, match=rf"{folder} is in use by process {holder.pid} on .*; let that run end"):
            start(run)
    finally:
        holder.kill()
        holder.communicate()
    assert before == {path: path.read_bytes() for path in before}
    assert start(run)[0] == Outcome.DONE
    assert column(run, "step") == list(range(1, 13))


def test_a_start_waits_for_one_that_ends(make, monkeypatch):
    run, naps = make(train={"steps": 4}), []
    start(run, stop_after=2)
    other = Lock(Path(run.run_folder), print)
    other.take()

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            other.__exit__()

    monkeypatch.setattr(lock, "PATIENCE", 600.0)
    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=time.monotonic, sleep=nap))
    assert start(run)[0] == Outcome.DONE
    assert len(naps) == 3


def test_a_start_that_fails_gives_the_lock_back(make):
    run = make()
    start(run, stop_after=1)
    with pytest.raises(ConfigError, match="another model") as kept:  # and with it the frames of the start
        start(make(model={"qk_norm": True}))
    assert start(run, stop_after=1)[0] == Outcome.STOPPED
    assert checkpoints(run) == [1, 2] and kept


def test_a_new_folder_is_locked_before_anything_is_written_there(make, monkeypatch):
    """As by two starts at the same time, both of which have seen no folder."""
    run, others = make(), []
    plain = Path.mkdir

    def mkdir(self, *given, **named):
        plain(self, *given, **named)
        if str(self) == run.run_folder and not others:
            others.append(Lock(self, print))
            others[0].take()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(ConfigError, match="is in use by another process"):
        start(run)
    assert os.listdir(run.run_folder) == [LOCK]
    others[0].__exit__()
    assert start(run)[0] == Outcome.DONE


def test_without_locks_a_run_goes_on_with_a_note(make, monkeypatch):
    def none(*given):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    run = make(train={"steps": 3})
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert sum("run.lock cannot be locked ([Errno 38] Function not implemented)" in one for one in said) == 1


def refused(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "PATIENCE", 0.0)
        with pytest.raises(ConfigError) as error:
            start(run)
        return str(error.value)


def test_all_ranks_are_refused(make, run_on):
    run = make()
    start(run, stop_after=1)
    with Lock(Path(run.run_folder), print) as held:
        held.take()
        one, other = run_on(2, refused, run)
    assert one == other and "is in use by process" in one

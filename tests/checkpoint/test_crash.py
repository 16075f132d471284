"""Killed, or failing, at each file operation of a save: a complete checkpoint is found and the next save clears up.

On a disk and in a store, with the rotation that follows, and where the step that is saved is there already.
"""

import errno
import itertools
import os
import shutil
import sys
from pathlib import Path

import pytest

from megaxf.checkpoint import CheckpointError, find_latest, list_checkpoints, load, save
from megaxf.parallel.mesh import build_mesh
from tests.checkpoint import buckets, faults
from tests.checkpoint.conftest import Holder

SHAPES = {"norm.weight": (7,)}
DISK, STORE = "", f"{buckets.Bucket.protocol}://"


class Shelf:
    """Folders that hold the checkpoints of steps 4 and 8, one for each fault."""

    def __init__(self, root, where):
        self.root, self.where, self.number = root, where, 0
        self.tokenizer = root / "tokenizer"
        self.tokenizer.mkdir()
        (self.tokenizer / "tokenizer.json").write_text("{}")
        for step in (4, 8):
            self.save(self.root / "template", step)

    def place(self, folder):
        return f"{self.where}{folder}"

    def save(self, folder, step, seed=None, **options):
        """Step `step`, with weights that tell the seed."""
        engine = Holder(seed=seed or step, shapes=SHAPES)
        options = {"config": "model: {}\n", "tokenizer": self.tokenizer} | options
        return save(self.place(folder), step, engine, {}, build_mesh(), **options)

    def fresh(self):
        self.number += 1
        shutil.copytree(self.root / "template", self.root / str(self.number))
        return str(self.root / str(self.number))

    def names(self, folder):
        return sorted(path.name for path in Path(folder).iterdir() if buckets.holds_objects(path))

    def found(self, folder):
        """(step, seed of the weights) of the newest complete checkpoint, which loads."""
        path = find_latest(self.place(folder), say=lambda sentence: None)
        target = Holder(shapes=SHAPES)
        step = load(path, target, build_mesh())["step"]
        return step, next(seed for seed in range(1, 20) if target.equals(Holder(seed=seed, shapes=SHAPES)))


@pytest.fixture(params=[DISK, pytest.param(STORE, marks=pytest.mark.long)], ids=["disk", "store"])
def shelf(request, tmp_path):
    return Shelf(tmp_path, request.param)


def clears_up(shelf, folder):
    """The next save works, and leaves what it should and nothing more."""
    shelf.save(folder, 16, keep_last=1)
    assert shelf.names(folder) == ["step-00000016"] and shelf.found(folder) == (16, 16)


def test_killed_at_any_call_of_a_save_and_a_rotation(shelf):
    states = []
    while faults.killed(folder := shelf.fresh(), len(states) + 1, lambda: shelf.save(folder, 12, keep_last=1)):
        states.append(shelf.found(folder))
        if states[-1] == (8, 8):
            assert {(one.step, one.fault) for one in list_checkpoints(shelf.place(folder))} >= {(4, None), (8, None)}
        clears_up(shelf, folder)
    assert shelf.names(folder) == ["step-00000012"]
    # Once the new one is there it stays, and rotation comes after it.
    switch = states.index((12, 12))
    assert set(states[:switch]) == {(8, 8)} and set(states[switch:]) == {(12, 12)} and 10 < switch < len(states) - 5


def test_killed_while_a_step_is_saved_again(shelf):
    """The only checkpoint there is: on a disk it counts until the other has taken its place."""
    shutil.rmtree(shelf.root / "template" / "step-00000004")
    states = []
    while faults.killed(folder := shelf.fresh(), len(states) + 1, lambda: shelf.save(folder, 8, seed=9)):
        # A store can rename nothing: there the old one goes first, and until the new one is whole there is none.
        whole = not shelf.where or any(one.fault is None for one in list_checkpoints(shelf.place(folder)))
        states.append(shelf.found(folder) if whole else (8, 8.5))
        clears_up(shelf, folder)
    assert shelf.found(folder) == (8, 9) and shelf.names(folder) == ["step-00000008"]
    assert states == sorted(states) and {(8, 8), (8, 9)} <= set(states)


def test_a_disk_that_is_full_at_any_call(shelf):
    messages = []
    for at in itertools.count(1):
        folder = shelf.fresh()
        with faults.planted(folder, at, faults.enospc) as planted:
            try:
                shelf.save(folder, 12, keep_last=1)
            except CheckpointError as error:
                messages.append(str(error))
                assert "No space left on device" in messages[-1] and folder in messages[-1], planted.calls[at - 1]
        if len(planted.calls) < at:
            break
        published = shelf.found(folder) == (12, 12)
        if not published:
            assert shelf.found(folder) == (8, 8), planted.calls[at - 1]
            assert shelf.names(folder) == ["step-00000004", "step-00000008"], planted.calls[at - 1]
        clears_up(shelf, folder)
    for name in ("distcp", ".metadata", "state.json", "config.yaml", "tokenizer.json", "manifest.json"):
        assert any(f"{name} cannot be written" in message for message in messages), name


def test_a_folder_that_may_not_be_written(shelf):
    """Root may write anywhere, so the operating system's answer is planted."""
    with faults.planted(folder := shelf.fresh(), at=0) as planted:
        shelf.save(folder, 12)
    at = next(number for number, (call, path) in enumerate(planted.calls) if call == "open" and "12" in path) + 1

    def denied():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with faults.planted(folder := shelf.fresh(), at, denied), pytest.raises(CheckpointError) as caught:
        shelf.save(folder, 12)
    assert f"{folder}/" in str(caught.value) and "cannot be written: Permission denied" in str(caught.value)
    assert shelf.names(folder) == ["step-00000004", "step-00000008"]


def test_every_change_goes_through_the_layer(shelf):
    """What Python does to the folder is done by files.py, so that there is one place to put faults into."""
    changes, layer = [], os.path.join("checkpoint", "files.py")
    armed = True

    def hook(event, args):
        if not armed or event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            return
        reads = event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if str(shelf.root) in str(args[0]) and not reads:
            frame = sys._getframe()
            while frame and not frame.f_code.co_filename.endswith(layer):
                frame = frame.f_back
            changes.append((event, str(args[0]), frame is not None))

    folder = shelf.fresh()
    sys.addaudithook(hook)
    shelf.save(folder, 12, keep_last=1)
    armed = False
    assert len(changes) > 20 and all(within for _, _, within in changes), changes

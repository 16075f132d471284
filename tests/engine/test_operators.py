"""A build of DeepSpeed's operators that was killed does not stop the next one."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from megaxf.engine.operators import load_operator


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """The lock of a build that began an hour ago."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    path = tmp_path / "async_io" / "lock"
    path.parent.mkdir()
    path.touch()
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def load(lock):
    """Whether the lock was there when the operator was compiled."""
    return load_operator(SimpleNamespace(name="pin_memory", load=lambda verbose: lock.exists()))


def test_a_lock_left_behind_is_removed(lock):
    assert load(lock) is False


def test_the_lock_of_a_build_that_has_just_begun_is_respected(lock):
    os.utime(lock)
    assert load(lock) is True


def test_the_lock_of_a_compiler_at_work_is_respected(lock):
    compiler = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        cwd=lock.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with compiler:
        compiler.stdout.readline()
        assert load(lock) is True
        compiler.communicate(b"\n")
    assert load(lock) is False

"""DCP files hold the tensors, and their table of contents cannot run code."""

import os
import pickle
import weakref

import pytest
import torch

from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.tensors import TensorFiles, write


class Command:
    """Runs a shell command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_any_dcp_reader_can_read_them(tmp_path, mesh):
    values = {"a/master": torch.randn(3, 4), "b/master": torch.randn(5)}
    write(tmp_path, {key: value.shape for key, value in values.items()}, values.__getitem__, mesh)
    target = {key: torch.zeros_like(value) for key, value in values.items()}
    torch.distributed.checkpoint.load(target, checkpoint_id=tmp_path, no_dist=True)
    assert all(torch.equal(target[key], values[key]) for key in values)


@pytest.mark.parametrize("make", [Command, lambda command: [Command(command)], lambda command: {"a": Command(command)}])
def test_a_malicious_table_of_contents_runs_nothing(tmp_path, mesh, make):
    write(tmp_path, {"a": torch.Size([1])}, lambda key: torch.ones(1), mesh)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(make(f"touch {tmp_path}/ran")))
    with pytest.raises(CheckpointError, match=r"\.metadata is refused .* it names posix.system"):
        TensorFiles(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [pickle.dumps([1, 2]), b"", b"\x80garbage"])
def test_other_contents_are_refused(tmp_path, content):
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="is refused"):
        TensorFiles(tmp_path)


def test_one_by_one_holds_one_tensor(tmp_path, mesh):
    alive, most = weakref.WeakSet(), []

    def read(key):
        value = torch.full((1000,), float(key))
        alive.add(value)
        most.append(len(alive))
        return value

    write(tmp_path, {str(key): torch.Size([1000]) for key in range(20)}, read, mesh, one_by_one=True)
    assert len(most) == 20 and max(most) <= 2
    assert TensorFiles(tmp_path).read("7").unique().tolist() == [7.0]

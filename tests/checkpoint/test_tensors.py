"""DCP files hold the tensors, and their table of contents cannot run code."""

import itertools
import os
import pickle

import pytest
import torch

from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.manifest import describe
from megaxf.checkpoint.tensors import BoxWriter, TensorFiles, write_contents


class Command:
    """Runs a shell command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def write(folder, boxes, rank=0):
    """Boxes (key, whole shape, offsets, values) as one rank's files; the table of contents is that of these alone."""
    with BoxWriter(folder, rank) as writer:
        for box in boxes:
            writer.put(*box)
    write_contents(folder, writer.stored)
    return writer


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_any_dcp_reader_can_read_them(tmp_path):
    whole, flat = torch.randn(5, 4), torch.randn(7)
    boxes = [
        ("a/master", (5, 4), (0, 0), whole[:2, :3]),
        ("a/master", (5, 4), (0, 3), whole[:2, 3:]),
        ("a/master", (5, 4), (2, 0), whole[2:]),
        ("a/exp_avg", (7,), (0,), flat),
    ]
    write(tmp_path, boxes)
    target = {"a/master": torch.zeros(5, 4), "a/exp_avg": torch.zeros(7)}
    torch.distributed.checkpoint.load(target, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(target["a/master"], whole) and torch.equal(target["a/exp_avg"], flat)


def test_any_box_is_read_from_any_boxes(tmp_path):
    whole = torch.randn(6, 5, 4)
    cuts = [(0, 3), (3, 4), (4, 6)], [(0, 2), (2, 5)]
    boxes = [("a/master", (6, 5, 4), (r, c, 0), whole[r:s, c:d]) for r, s in cuts[0] for c, d in cuts[1]]
    write(tmp_path, boxes)
    tensors = TensorFiles(tmp_path)
    assert torch.equal(tensors.read("a/master"), whole)
    for r, c, e in itertools.product(*(list(itertools.combinations(range(n + 1), 2)) for n in whole.shape)):
        box = whole[slice(*r), slice(*c), slice(*e)]
        into = torch.zeros(6, 9, 5)[: len(box), : box.shape[1], : box.shape[2]]  # not contiguous
        tensors.fill("a/master", (r[0], c[0], e[0]), into)
        assert torch.equal(into, box)


def test_a_reader_of_weights_needs_no_moments(tmp_path):
    boxes = [(f"{name}/{part}", (3,), (0,), torch.ones(3)) for name in "ab" for part in ("master", "exp_avg")]
    write(tmp_path, boxes)
    tensors = TensorFiles(tmp_path)
    assert tensors.files_of("a/master", (0,), (3,)) == tensors.files_of("b/master", (0,), (3,)) == {"__0_0.distcp"}
    assert tensors.files_of("a/exp_avg", (1,), (1,)) == {"__0_1.distcp"}


def test_files_end_and_begin_by_size(tmp_path, monkeypatch):
    monkeypatch.setattr("megaxf.checkpoint.tensors.FILE_BYTES", 5000)
    boxes = [(f"{i}/master", (500,), (0,), torch.full((500,), float(i))) for i in range(5)]
    entries = write(tmp_path, boxes).entries()
    assert (
        [path.name for path in sorted(tmp_path.glob("*.distcp"))]
        == list(entries)
        == [f"__0_{i}.distcp" for i in range(3)]
    )
    assert all(describe(tmp_path / name) == entry for name, entry in entries.items())
    assert [TensorFiles(tmp_path).read(f"{i}/master")[7].item() for i in range(5)] == list(range(5))


def test_a_tensor_that_is_not_whole_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not written all of a/master"):
        write(tmp_path, [("a/master", (3, 2), (0, 0), torch.ones(2, 2))])


@pytest.mark.parametrize("cut", [100, 1])
def test_a_box_that_is_cut_off_is_named(tmp_path, cut):
    write(tmp_path, [("a/master", (3,), (0,), torch.ones(3))])
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CheckpointError, match=r"a/master does not lie in .*__0_0.distcp"):
        TensorFiles(tmp_path).read("a/master")


@pytest.mark.parametrize("make", [Command, lambda command: [Command(command)], lambda command: {"a": Command(command)}])
def test_a_malicious_table_of_contents_runs_nothing(tmp_path, make):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(make(f"touch {tmp_path}/ran")))
    with pytest.raises(CheckpointError, match=r"\.metadata is refused .* it names posix.system"):
        TensorFiles(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [pickle.dumps([1, 2]), b"", b"\x80garbage"])
def test_other_contents_are_refused(tmp_path, content):
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match="is refused"):
        TensorFiles(tmp_path)

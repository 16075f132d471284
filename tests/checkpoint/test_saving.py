"""A checkpoint is whole or not there, and what was there before stays until it is."""

import json
import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megaxf.checkpoint import CheckpointError, HostBuffers, find_latest, load, read_config, read_weights, save, saving


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_everything_comes_back(tmp_path, holder, mesh):
    tokenizer = tmp_path / "tokenizer"
    (tokenizer / "sub").mkdir(parents=True)
    (tokenizer / "sub/model").write_bytes(b"\x00\xff")
    engine = holder(seed=1)
    extra = {"samples": 96, "loss": math.inf, "random": [1, 2]}
    config = "model: {family: llama, rms_norm_eps: 1.0e-05}\n"
    path = save(tmp_path / "run", 12, engine, extra, mesh, config=config, tokenizer=tokenizer)
    assert path == tmp_path / "run/step-00000012"
    other = holder(seed=2, optimizer_step=0)
    assert not other.equals(engine)
    assert load(path, other, mesh) == {**extra, "step": 12, "path": str(path)}
    assert other.equals(engine)
    assert read_config(path) == {"model": {"family": "llama", "rms_norm_eps": 1e-5}}
    assert (path / "tokenizer/sub/model").read_bytes() == b"\x00\xff"
    weights = read_weights(path)
    assert list(weights) == list(engine.state_shapes()) and weights.shapes["model.norm.weight"] == (7,)
    assert torch.equal(weights["lm_head.weight"], engine.tensors["lm_head.weight"]["master"])
    with pytest.raises(KeyError):
        weights["lm_head.bias"]


def test_manifest_lists_every_other_file(tmp_path, holder, mesh):
    path = save(tmp_path, 1, holder(), {}, mesh)
    manifest = json.loads((path / "manifest.json").read_text())
    files = {p.relative_to(path).as_posix(): p.stat().st_size for p in path.rglob("*") if p.is_file()}
    files.pop("manifest.json")
    assert {name: entry["size"] for name, entry in manifest["files"].items()} == files
    assert manifest["format_version"] == 1 and "tensors/.metadata" in files


def test_before_the_first_step_there_are_no_moments(tmp_path, holder, mesh):
    fresh = holder(seed=1, moments=False, optimizer_step=0)
    target = holder(seed=2)
    load(save(tmp_path, 0, fresh, {}, mesh), target, mesh)
    assert target.equals(fresh)


def test_rotation_counts_numbers_and_touches_nothing_foreign(tmp_path, holder, mesh):
    foreign = [tmp_path / "step_99999_backup", tmp_path / "step-99", tmp_path / "notes"]
    for folder in foreign:
        folder.mkdir()
    for step in (8, 9, 10, 11, 100, 101):
        save(tmp_path, step, holder(), {}, mesh, keep_last=2)
    kept = ["step-00000100", "step-00000101"]
    assert names(tmp_path) == sorted([*kept, *(path.name for path in foreign)])
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step, holder(), {}, mesh, keep_last=1)
    assert find_latest(tmp_path).name == "step-100000000"
    assert names(tmp_path) == sorted(["step-100000000", *(path.name for path in foreign)])


def test_rotation_keeps_what_it_just_saved_and_what_lies_beyond(tmp_path, holder, mesh):
    for step in (5, 20):
        save(tmp_path, step, holder(), {}, mesh)
    save(tmp_path, 6, holder(), {}, mesh, keep_last=1)
    assert names(tmp_path) == ["step-00000006", "step-00000020"]


def test_every_so_manieth_stays(tmp_path, holder, mesh):
    for step in (2, 4, 6, 8, 9):
        save(tmp_path, step, holder(), {}, mesh, keep_last=1, keep_every=4)
    assert names(tmp_path) == ["step-00000004", "step-00000008", "step-00000009"]


def test_same_step_again_replaces(tmp_path, holder, mesh):
    save(tmp_path, 5, holder(seed=1), {"x": 1}, mesh)
    path = save(tmp_path, 5, holder(seed=2), {"x": 2}, mesh)
    target = holder()
    assert load(path, target, mesh)["x"] == 2 and target.equals(holder(seed=2))
    assert names(tmp_path) == ["step-00000005"]


def test_leftovers_are_cleared(tmp_path, holder, mesh):
    (tmp_path / ".step-00000004.tmp-0123abcd/tensors").mkdir(parents=True)
    save(tmp_path, 5, holder(), {}, mesh)
    assert names(tmp_path) == ["step-00000005"]


def test_a_sum_that_overflows_is_no_fault(tmp_path, holder, mesh):
    engine = holder()
    engine.tensors["model.norm.weight"]["master"][:] = 3e38
    save(tmp_path, 5, engine, {}, mesh)
    assert names(tmp_path) == ["step-00000005"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, holder, mesh, value):
    save(tmp_path, 5, holder(), {}, mesh)
    engine = holder()
    engine.tensors["model.norm.weight"]["master"][3] = value
    with pytest.raises(CheckpointError, match=r"not finite: model.norm.weight \(master\)"):
        save(tmp_path, 6, engine, {}, mesh, keep_last=1)
    assert names(tmp_path) == ["step-00000005"]


def test_all_weights_that_are_not_finite_are_counted(tmp_path, holder, mesh):
    engine = holder()
    faulty = list(engine.pieces())[1:6]
    for piece in faulty:
        piece.values[0] = math.nan
    said = ", ".join(f"{piece.name} ({piece.part})" for piece in faulty[:3]) + " and 2 more; training has diverged"
    with pytest.raises(CheckpointError, match=re.escape(f"not finite: {said}")):
        save(tmp_path, 6, engine, {}, mesh)


def test_weights_that_are_not_finite_are_refused_before_training_goes_on(tmp_path, holder, mesh):
    engine = holder()
    engine.tensors["model.norm.weight"]["master"][3] = math.nan
    with pytest.raises(CheckpointError, match=r"not finite: model.norm.weight \(master\)"):
        next(saving(tmp_path, 6, engine, {}, mesh, HostBuffers()))
    assert names(tmp_path) == []


def test_space_is_checked_before(tmp_path, holder, mesh, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match=r"needs [\d,]+ bytes \(.*\), and 1,000 \(1 kB\) are free in .*make room"):
        save(tmp_path, 6, holder(), {}, mesh)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("moments", "each"), [(True, 12), (False, 4)])
def test_room_for_the_moments_too(tmp_path, holder, mesh, monkeypatch, moments, each):
    engine = holder(moments=moments, optimizer_step=int(moments))
    needed = each * sum(shape.numel() for shape in engine.state_shapes().values()) + (1 << 20)
    for free in (needed - 1, needed):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: SimpleNamespace(free=free))
        if free < needed:
            with pytest.raises(CheckpointError, match=f"needs {needed:,} bytes"):
                save(tmp_path, 6, engine, {}, mesh)
        else:
            save(tmp_path, 6, engine, {}, mesh)


FULL_DISK = """
    import resource, runpy, sys
    from pathlib import Path
    from megaxf.checkpoint import CheckpointError, find_latest, load, save
    from megaxf.parallel.mesh import build_mesh
    Holder = runpy.run_path(sys.argv[2])["Holder"]
    mesh, folder = build_mesh(), Path(sys.argv[1])
    save(folder, 1, Holder(seed=1), {}, mesh, keep_last=1)
    for limit in (100, 3000, 6000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            save(folder, 2, Holder(seed=2), {}, mesh, keep_last=1)
        except CheckpointError as error:
            assert "earlier checkpoints are as they were" in str(error) and "File too large" in str(error), error
        else:
            raise AssertionError(f"saved with a file size limit of {limit}")
        target = Holder(seed=3)
        load(find_latest(folder), target, mesh)
        assert target.equals(Holder(seed=1))
    print("intact")
"""


def test_full_disk_leaves_the_old_checkpoint_and_no_litter(tmp_path):
    helper = str(Path(__file__).with_name("conftest.py"))
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path), helper]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "intact\n"), done.stderr
    assert names(tmp_path) == ["step-00000001"]

"""The newest complete checkpoint is found by looking, without a pointer."""

import shutil

import pytest

from megaxf.checkpoint import CheckpointError, find_latest, list_checkpoints, resolve, save
from megaxf.checkpoint.manifest import read_manifest, write_manifest


@pytest.fixture
def folder(tmp_path, holder, mesh):
    for step in (9, 10, 11):
        save(tmp_path / "checkpoints", step, holder(), {}, mesh)
    return tmp_path / "checkpoints"


def test_nothing_there(tmp_path):
    assert find_latest(tmp_path) is None
    assert find_latest(tmp_path / "absent") is None


def test_half_written_ones_are_passed_over_aloud(folder, mesh):
    (folder / "step-00000011/manifest.json").unlink()
    shutil.copytree(folder / "step-00000010", folder / "step-00000012")
    cut = folder / "step-00000012/state.json"
    cut.write_bytes(cut.read_bytes()[:-1])
    shutil.copytree(folder / "step-00000010", folder / "step-00000013")
    (folder / "step-00000013/tensors/__0_0.distcp").unlink()
    said = []
    assert find_latest(folder, mesh, said.append) == folder / "step-00000010"
    assert ["__0_0.distcp is missing" in said[0], "state.json has " in said[1]] == [True, True]
    assert "step-00000011/manifest.json is missing: saving step-00000011 was interrupted" in said[2]
    assert [listed.step for listed in list_checkpoints(folder) if listed.fault is None] == [9, 10]
    assert find_latest(folder, mesh, said.append, before=10) == folder / "step-00000009"


def test_garbage_for_a_manifest(folder, mesh):
    (folder / "step-00000011/manifest.json").write_text('{"format_version": 1}')
    assert find_latest(folder).name == "step-00000010"
    (folder / "step-00000010/manifest.json").write_text("\x00")
    assert find_latest(folder).name == "step-00000009"


def test_another_format_is_refused_not_passed_over(folder, monkeypatch):
    entries = read_manifest(folder / "step-00000011")
    with monkeypatch.context() as patch:
        patch.setattr("megaxf.checkpoint.manifest.FORMAT_VERSION", 2)
        write_manifest(folder / "step-00000011", entries)
    with pytest.raises(CheckpointError, match=r"step-00000011/manifest.json: format_version = 2.*reads 1"):
        find_latest(folder)


def test_what_a_path_means(folder):
    newest = folder / "step-00000011"
    assert resolve(folder.parent) == resolve(folder) == resolve(newest) == newest
    (folder / "step-00000009/state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000009/state.json is missing"):
        resolve(folder / "step-00000009")
    with pytest.raises(CheckpointError, match="no such folder"):
        resolve(folder / "runn")
    (folder / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        resolve(folder / "empty")

"""Checkpoints in a store that speaks S3, on loopback: saved, rotated, found, loaded, refused where damaged."""

import fsspec
import pytest

from launch.megaxf import main
from megaxf.checkpoint import CheckpointError, DamagedCheckpoint, find_latest, list_checkpoints, load, save


@pytest.fixture
def store(endpoint, monkeypatch):
    """The file system of an empty bucket, found by its URL alone as with FSSPEC_S3_ENDPOINT_URL."""
    filesystem = fsspec.get_filesystem_class("s3")
    filesystem.clear_instance_cache()
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
    store = fsspec.filesystem("s3")
    store.mkdir("models")
    yield store
    filesystem.clear_instance_cache()


FOLDER = "s3://models/run"


def test_saved_rotated_found_and_loaded(store, mesh, holder, tmp_path, capsys):
    for step in (1, 2, 3):
        saved = save(FOLDER, step, holder(seed=step), {"at": step}, mesh, config="model: {}\n", keep_last=2)
    assert str(saved) == f"{FOLDER}/step-00000003"
    assert [(one.step, one.fault) for one in list_checkpoints(FOLDER)] == [(2, None), (3, None)]
    target = holder(optimizer_step=0)
    assert load(find_latest(FOLDER), target, mesh)["at"] == 3 and target.equals(holder(seed=3))
    save(FOLDER, 3, holder(seed=9), {}, mesh, config="model: {}\n")
    load(find_latest(FOLDER), target, mesh)
    assert target.equals(holder(seed=9))
    assert main(["checkpoint", "verify", FOLDER]) == 0 and "step-00000003" in capsys.readouterr().out


def test_without_its_manifest_it_is_none_and_what_is_altered_is_named(store, mesh, holder, tmp_path):
    for step in (1, 2):
        save(FOLDER, step, holder(seed=step), {}, mesh)
    store.rm_file("models/run/step-00000002/manifest.json")
    said = []
    assert str(find_latest(FOLDER, say=said.append)) == f"{FOLDER}/step-00000001"
    assert "step-00000002/manifest.json is missing" in said[0]
    (name,) = [path for path in store.find("models/run/step-00000001") if path.endswith("0_0.distcp")]
    content = bytearray(store.cat_file(name))
    content[-300] ^= 1
    store.pipe_file(name, bytes(content))
    with pytest.raises(DamagedCheckpoint, match=r"s3://models/run/step-00000001/tensors/__0_0.distcp is not what was"):
        load(find_latest(FOLDER, say=said.append), holder(), mesh)
    save(FOLDER, 3, holder(seed=3), {}, mesh)
    assert not store.exists("models/run/step-00000002/state.json"), "what an interrupted save left goes with the next"


def test_a_bucket_that_is_not_there(store, mesh, holder):
    with pytest.raises(CheckpointError, match=r"s3://nowhere/run/step-00000001.* cannot be written"):
        save("s3://nowhere/run", 1, holder(), {}, mesh)

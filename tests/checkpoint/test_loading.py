"""What is loaded is what was saved, into the model that it was saved from, or nothing is."""

import pytest
import torch

from megaxf.checkpoint import CheckpointError, DamagedCheckpoint, load, load_latest, read_config, read_weights, save

FILES = ["config.yaml", "state.json", "tensors/.metadata", "tensors/__0_0.distcp"]


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_before_the_engine_is_touched(tmp_path, holder, mesh, name):
    path = save(tmp_path, 7, holder(seed=1), {}, mesh, config="model: {}")
    flip(path / name, (path / name).stat().st_size // 2)
    target = holder(seed=2)
    with pytest.raises(DamagedCheckpoint, match=f"{name} is not what was written"):
        load(path, target, mesh)
    assert target.equals(holder(seed=2))
    with pytest.raises(DamagedCheckpoint, match=name):
        read_config(path), dict(read_weights(path))


def test_a_cut_file_is_named(tmp_path, holder, mesh):
    path = save(tmp_path, 7, holder(), {}, mesh)
    tensors = path / "tensors/__0_0.distcp"
    tensors.write_bytes(tensors.read_bytes()[:100])
    with pytest.raises(DamagedCheckpoint, match=r"__0_0.distcp has 100 bytes, \d+ were written"):
        load(path, holder(), mesh)


def test_falls_back_to_the_one_before_and_says_so(tmp_path, holder, mesh):
    assert load_latest(tmp_path, holder(), mesh) is None
    for step in (5, 6, 7):
        save(tmp_path, step, holder(seed=step), {}, mesh)
    flip(tmp_path / "step-00000007/tensors/__0_0.distcp", 2000)
    (tmp_path / "step-00000006/state.json").unlink()
    said, target = [], holder()
    assert load_latest(tmp_path, target, mesh, said.append)["step"] == 5
    assert target.equals(holder(seed=5))
    assert "step-00000007/tensors/__0_0.distcp" in said[0] and "going back" in said[0]
    assert "step-00000006/state.json is missing" in said[1]
    flip(tmp_path / "step-00000005/state.json", 3)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be loaded"):
        load_latest(tmp_path, target, mesh, said.append)


def test_other_models_are_refused_with_every_difference(tmp_path, holder, mesh):
    path = save(tmp_path, 7, holder(shapes={"a": (2,), "b": (3,), "d": (1,), "e": (2, 3)}), {}, mesh)
    target = holder(seed=1, shapes={"a": (2,), "c": (3,), "d": (4,), "e": (3, 2)})
    with pytest.raises(CheckpointError) as caught:
        load(path, target, mesh)
    assert str(caught.value).splitlines()[1:5] == [
        "  - c is missing in the checkpoint",
        "  - b is in the checkpoint and not in the model",
        "  - d is [1] in the checkpoint and [4] in the model",
        "  - e is [2, 3] in the checkpoint and [3, 2] in the model",
    ]
    assert target.equals(holder(seed=1, shapes={"a": (2,), "c": (3,), "d": (4,), "e": (3, 2)}))


def test_what_is_missing_begins_anew_where_that_is_asked_for(tmp_path, holder, mesh):
    """Each tensor that is on one side only is said; one of another shape is refused all the same."""
    source = holder(shapes={"a": (2,), "b": (3,)})
    path = save(tmp_path, 7, source, {}, mesh)
    target, fresh, said = (*(holder(seed=1, shapes={"a": (2,), "c": (3,)}) for _ in range(2)), [])
    load(path, target, mesh, allow_missing=True, say=said.append)
    assert said == [f"{path}: c is missing in the checkpoint", f"{path}: b is in the checkpoint and not in the model"]
    assert all(torch.equal(target.tensors["a"][part], source.tensors["a"][part]) for part in target.tensors["a"])
    assert torch.equal(target.tensors["c"]["master"], fresh.tensors["c"]["master"])
    assert not target.tensors["c"]["exp_avg"].any() and not target.tensors["c"]["exp_avg_sq"].any()
    begins = torch.tensor([1.0, 2.0, 3.0])
    load(path, target, mesh, allow_missing=True, anew={"c": begins}.__getitem__)
    assert torch.equal(target.tensors["c"]["master"], begins)
    with pytest.raises(CheckpointError, match=r"a is \[2\] in the checkpoint and \[4\] in the model"):
        load(path, holder(shapes={"a": (4,)}), mesh, allow_missing=True, say=said.append)

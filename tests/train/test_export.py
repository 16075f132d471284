"""A checkpoint that holds the model as transformers loads it (checkpoint.export): equal to what convert makes of it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch.megaxf import main
from megaxf.checkpoint import list_checkpoints, read_weights, save
from megaxf.checkpoint.checking import find_faults
from megaxf.convert.errors import ConvertError
from megaxf.parallel.mesh import build_mesh
from megaxf.train.export import check, exporter
from tests.distributed.tiny import tiny_engine, tiny_mesh, tiny_run, train_steps
from tests.train.kit import start, write_data
from tests.train.kit import tiny_run as run_of

EXPORT = {"export": "huggingface"}


def tensors(folder):
    """All tensors of a Hugging Face folder, and how many files they lie in."""
    parts = [load_file(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    return {name: tensor for part in parts for name, tensor in part.items()}, len(parts)


def save_exported(folder, sections):
    """Two steps, and a checkpoint with its export."""
    run = tiny_run({"intermediate_size": 46, "vocab_size": 62}, checkpoint=EXPORT, **sections)
    engine = tiny_engine(run)
    train_steps(engine, run, range(2))
    save(folder, 2, engine, {}, tiny_mesh(run), export=exporter(run, 2, None))


LAYOUTS = {
    "tensor": {"parallel": {"tensor_parallel_size": 2}},
    "pipeline": {"parallel": {"pipeline_parallel_size": 2}, "engine": {"zero_stage": 1}},
    "zero3": {"engine": {"zero_stage": 3}},
}


@pytest.mark.parametrize("layout", ["tensor", pytest.param("pipeline", marks=pytest.mark.long), "zero3"])
def test_two_ranks_write_the_weights_rounded_once(ranks2, tmp_path, layout):
    ranks2(save_exported, str(tmp_path), LAYOUTS[layout])
    path = tmp_path / "step-00000002"
    found, number = tensors(path / "huggingface")
    saved = read_weights(path)
    assert found.keys() == saved.shapes.keys() and number >= 2
    assert all(torch.equal(tensor, saved[name].bfloat16()) for name, tensor in found.items())
    index = json.loads((path / "huggingface/model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == found.keys()
    assert find_faults(path, 2, lambda size: None) == []
    manifest = json.loads((path / "manifest.json").read_text())["files"]
    assert {name for name in manifest if name.startswith("huggingface/")} == {
        f"huggingface/{file.name}" for file in (path / "huggingface").iterdir()
    }


def test_a_run_exports_what_convert_makes_and_transformers_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_data(tmp_path / "data")
    run = run_of(tmp_path, train={"steps": 5}, checkpoint={"every": 2, "export_every": 4, "keep_last": 9, **EXPORT})
    start(run)
    exported = [(Path(run.run_folder) / "checkpoints" / f"step-0000000{step}/huggingface") for step in (2, 4, 5)]
    assert [folder.is_dir() for folder in exported] == [False, True, True]
    assert all(one.fault is None for one in list_checkpoints(exported[0].parents[1]))
    out = tmp_path / "converted"
    assert main(["convert", str(exported[1].parent), str(out), "--dtype", "bfloat16"]) == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in exported[1].iterdir())
    for name in names:
        assert (out / name).read_bytes() == (exported[1] / name).read_bytes(), name
    model = transformers.AutoModelForCausalLM.from_pretrained(exported[1])
    assert model.dtype == torch.bfloat16
    weights = read_weights(exported[1].parent)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name].bfloat16()), name


def test_a_model_that_no_architecture_has_is_refused_before_the_start():
    run = tiny_run({"attention_bias": True, "qk_norm": True}, checkpoint=EXPORT)
    with pytest.raises(ConvertError, match=r"model.attention_bias.*model.qk_norm"):
        check(run)
    check(tiny_run({"attention_bias": True, "qk_norm": True}))


def test_a_disk_that_is_too_small_for_the_export_is_found_before(tmp_path, monkeypatch):
    run = tiny_run(checkpoint=EXPORT)
    engine = tiny_engine(run)
    parameters = sum(shape.numel() for shape in engine.state_shapes().values())
    free = 5 * parameters + (1 << 20)
    monkeypatch.setattr("data_pipeline.disk.free_bytes", lambda folder: free)
    save(tmp_path, 1, engine, {}, build_mesh())
    with pytest.raises(ValueError, match="make room"):
        save(tmp_path, 2, engine, {}, build_mesh(), export=exporter(run, 2, None))

"""Megatron-LM's layout torch_dist: read where torch.distributed.checkpoint itself wrote it, and written."""

import json
import pickle
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from megaxf.convert import megatron, megatron_dist, registry
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Form, Trained
from megaxf.models.llama import Config, Model
from tests.convert.conftest import SETTINGS, Weights
from tests.convert.test_megatron import arguments, last_row, state

CONFIG = Config(**SETTINGS, attention_bias=True)


def made(config=CONFIG):
    generator = torch.Generator().manual_seed(4)
    shapes = {name: weight.shape for name, weight in Model(config).named_parameters()}
    return Weights({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})


def stacked(config=CONFIG):
    """What the ranks hold together, the layers of each kind in one tensor."""
    whole = state(config, made(config), 1, 0, range(config.num_hidden_layers), True, True, last_row)
    ends = dict.fromkeys(name.split(".", 3)[3] for name in whole if name.startswith("decoder.layers."))
    found = {name: tensor for name, tensor in whole.items() if not name.startswith("decoder.layers.")}
    for end in ends:
        layers = [whole[f"decoder.layers.{layer}.{end}"] for layer in range(config.num_hidden_layers)]
        found[f"decoder.layers.{end}"] = torch.stack(layers)
    return found


def save(folder):
    """As boxes of two ranks, cut along the first and the last dimension by turns, so also between layers, with things
    beside that are no weights."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    boxes = {
        name: distribute_tensor(tensor, mesh, [Shard(0 if number % 2 else tensor.dim() - 1)])
        for number, (name, tensor) in enumerate(stacked().items())
    }
    others = {"optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.ones(36), "rng_state": [1, 2]}
    dcp.save(boxes | others, checkpoint_id=folder)


@pytest.fixture
def folder(tmp_path, run_on):
    place = tmp_path / "iter_0000010"
    run_on(2, save, place)
    torch.save({"args": arguments(CONFIG, 1, 1), "iteration": 10}, place / "common.pt")
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "common_backend": "torch"}))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    return tmp_path


class Evil:
    def __reduce__(self):
        return print, ("code of the file has run",)


def test_boxes_of_stacked_layers(folder):
    assert registry.format_of(folder) == "megatron"
    found, expected = megatron.read(folder), made()
    assert found.config == CONFIG and list(found.weights) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found.weights[name], tensor), name
    place = folder / "iter_0000010"
    contents = (place / ".metadata").read_bytes()
    for name, message in (("zarr", "sharded_backend = 'zarr' is not read"), ("torch_dist", "is no table of contents")):
        (place / "metadata.json").write_text(json.dumps({"sharded_backend": name}))
        (place / ".metadata").write_bytes(pickle.dumps(Evil()))
        with redirect_stdout(StringIO()) as printed, pytest.raises(ConvertError, match=message):
            megatron.read(folder)
        assert printed.getvalue() == ""
    (place / ".metadata").write_bytes(contents)
    table = dcp.FileSystemReader(place).read_metadata()
    del table.storage_data[next(index for index in table.storage_data if index.fqn == "decoder.final_layernorm.weight")]
    (place / ".metadata").write_bytes(pickle.dumps(table))
    with pytest.raises(ConvertError, match=r"boxes of decoder\.final_layernorm\.weight do not make up its shape"):
        megatron.read(folder)
    (place / ".metadata").write_bytes(contents)
    (file,) = place.glob("__1_*.distcp")
    content = file.read_bytes()
    lies = dcp.FileSystemReader(place).read_metadata().storage_data.items()
    ends = [at.offset + at.length for index, at in lies if at.relative_path == file.name and index.fqn in stacked()]
    for size in (300, max(ends) - 1):
        file.write_bytes(content[:size])
        with pytest.raises(ConvertError, match=r"distcp is damaged"):
            dict(megatron.read(folder).weights)
    torch.save({"iteration": 10}, place / "common.pt")
    with pytest.raises(ConvertError, match=r"common.pt has no arguments of Megatron-LM"):
        megatron.read(folder)
    (place / "metadata.json").write_text("")
    with pytest.raises(ConvertError, match=r"metadata.json is not JSON"):
        megatron.read(folder)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True, "qk_norm": True, "attention_bias": False}])
def test_what_is_written(tmp_path, changes):
    """dcp finds in it what Megatron-LM's ranks would have saved together, and nothing else."""
    config = CONFIG.model_copy(update=changes)
    weights, expected = made(config), stacked(config)
    megatron_dist.write(Trained(config, weights, None, "float32", [7]), tmp_path / "out", Form())
    place = tmp_path / "out/release"
    assert set(dcp.FileSystemReader(place).read_metadata().state_dict_metadata) == set(expected)
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(found, checkpoint_id=place)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    content = torch.load(place / "common.pt", weights_only=False)
    assert content["args"].num_layers == 3 and content["checkpoint_version"] == 3.0
    assert json.loads((place / "metadata.json").read_text())["sharded_backend"] == "torch_dist"
    assert {path.name for path in place.iterdir()} == {".metadata", "__0_0.distcp", "common.pt", "metadata.json"}
    back = megatron.read(tmp_path / "out")
    assert (back.config, back.eos_ids, back.dtype) == (config, [7], "float32") and list(back.weights) == list(weights)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in weights.items())
    with pytest.raises(ConvertError, match="--max-shard-size has no effect with --to megatron_dist"):
        megatron_dist.write(Trained(config, weights, None, "float32", []), tmp_path / "new", Form(max_shard_size=9))

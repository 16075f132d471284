"""Files of an export: shards and index agree, nothing stale is left, dtypes survive."""

import json
import weakref

import pytest
import torch
from safetensors import safe_open

from megaxf.convert.errors import ConvertError
from megaxf.convert.huggingface import read
from megaxf.convert.interface import each_used_once
from megaxf.convert.safetensors_files import SafetensorsFolder, write_files
from tests.convert.conftest import Weights, assert_same_files, export


def every_tensor(folder):
    """(tensor name -> file it is in, bytes of tensors); each tensor may appear once."""
    where, size = {}, 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                assert name not in where
                where[name] = path.name
                size += file.get_tensor(name).nbytes
    return where, size


def test_small_shards_replace_a_larger_export(tmp_path, make_config, make_weights):
    out = tmp_path / "out"
    export(
        make_config(num_hidden_layers=5), make_weights(make_config(num_hidden_layers=5)), None, out, max_shard_size=9000
    )
    before = {path.name for path in out.iterdir()}
    config = make_config()
    with pytest.raises(ConvertError, match="pass --overwrite"):
        export(config, make_weights(config), None, out)
    assert {path.name for path in out.iterdir()} == before
    export(config, make_weights(config), None, out, max_shard_size=30_000, overwrite=True)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    where, size = every_tensor(out)
    assert where == index["weight_map"] and size == index["metadata"]["total_size"]
    assert set(where) == set(make_weights(config))
    limit = 30_000 + 1500  # the header
    assert len(set(where.values())) > 1 and all(path.stat().st_size < limit for path in out.glob("*.safetensors"))
    export(config, make_weights(config), None, out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_smallest_shards_hold_one_tensor(tmp_path, make_config, make_weights):
    config = make_config()
    weights = make_weights(config)
    export(config, weights, None, tmp_path / "out", dtype="float32", max_shard_size=1)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == len(weights) == 30
    back = read(tmp_path / "out").weights
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_a_vocabulary_of_an_odd_size_stays_as_it_is(tmp_path, make_config, make_weights):
    config = make_config(vocab_size=257)
    export(config, make_weights(config), None, tmp_path / "one", dtype="float32")
    first = read(tmp_path / "one")
    assert first.config.vocab_size == 257 and first.weights["lm_head.weight"].shape == (257, 36)
    export(first.config, first.weights, None, tmp_path / "two", dtype=first.dtype)
    assert_same_files(tmp_path / "one", tmp_path / "two")


def test_bf16_in_bf16_out(tmp_path, make_config, make_weights):
    config = make_config()
    weights = make_weights(config)
    weights["model.norm.weight"][:4] = torch.tensor([1e-6, 3e38, -1e-38, 65519.0])
    export(config, weights, None, tmp_path / "one")
    first = read(tmp_path / "one")
    assert first.dtype == "bfloat16"
    assert first.weights["model.norm.weight"][:2].tolist() == pytest.approx([1e-6, 3e38], rel=4e-3)
    as_fp32 = type(weights)({name: first.weights[name].float() for name in first.weights})
    export(first.config, as_fp32, None, tmp_path / "two", dtype=first.dtype)
    assert_same_files(tmp_path / "one", tmp_path / "two")
    assert json.loads((tmp_path / "two/config.json").read_text())["dtype"] == "bfloat16"


def test_a_piece_of_a_tensor_at_a_time(tmp_path):
    alive, most = weakref.WeakSet(), []

    class Watched(Weights):
        def pieces(self, name):
            for piece in super().pieces(name):
                piece = piece.clone()
                alive.add(piece)
                most.append(len(alive))
                yield piece

    weights = Watched({str(k): torch.full((70, 5), float(k)) for k in range(20)})
    assert write_files(lambda name: (tmp_path / name).open("wb"), weights, "float32", 4000) == 20 * 1400
    assert len(most) == 200 and max(most) <= 2
    folder = SafetensorsFolder(tmp_path)
    assert all(torch.equal(folder[name], weights[name]) for name in weights)


def test_each_tensor_is_used_once():
    weights = Weights({name: torch.ones(9, 2) for name in ("once", "twice", "never", "cut short")})
    read, threads = [], torch.get_num_threads()
    with pytest.raises(ConvertError) as caught, each_used_once(weights, read.append) as counted:
        assert torch.equal(torch.cat(list(counted.pieces("once"))), weights["once"])
        assert torch.equal(counted["twice"], next(iter(counted.pieces("cut short"))).new_ones(9, 2))
        list(counted.pieces("twice"))
    assert str(caught.value).splitlines()[1:] == [
        "  - twice was used 2 times",
        "  - never was used 0 times",
        "  - cut short was used 0 times",
    ]
    assert read == [14, 4, 18, 14, 14, 4] and torch.get_num_threads() == threads


def test_what_ends_the_reading_of_a_piece_ends_the_conversion():
    class Damaged(Weights):
        def pieces(self, name):
            yield self[name][:7]
            raise ConvertError("the disk is damaged")

    weights = Damaged({"a": torch.ones(9, 2)})
    with pytest.raises(ConvertError, match="the disk is damaged"), each_used_once(weights, print) as counted:
        list(counted.pieces("a"))


def test_a_tensor_in_pieces_is_the_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr("megaxf.models.weights.PIECE", 100)
    weights = Weights({"a": torch.randn(23, 3, 7), "b": torch.randn(5)})
    write_files(lambda name: (tmp_path / name).open("wb"), weights, "bfloat16", 10_000)
    folder = SafetensorsFolder(tmp_path)
    pieces = list(folder.pieces("a"))
    assert [piece.shape for piece in pieces] == [(4, 3, 7)] * 5 + [(3, 3, 7)]
    assert torch.equal(torch.cat(pieces), weights["a"].bfloat16()) and torch.equal(folder["a"], torch.cat(pieces))


def test_a_failed_export_leaves_nothing(tmp_path, make_config, make_weights):
    config = make_config()
    weights = make_weights(config)
    out = tmp_path / "out"
    export(config, weights, None, out)

    class Broken(type(weights)):
        def __getitem__(self, name):
            if name == "lm_head.weight":
                raise OSError("no space left on device")
            return super().__getitem__(name)

    content = (out / "model.safetensors").read_bytes()
    with pytest.raises(ConvertError, match=r"out was not made: no space left on device"):
        export(config, Broken(weights), None, out, dtype="float32", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "model.safetensors").read_bytes() == content


def test_a_folder_that_is_no_export_is_never_replaced(tmp_path, make_config, make_weights):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").touch()
    with pytest.raises(ConvertError, match=r"home exists and is no earlier output \(it has no config.json\)"):
        export(make_config(), make_weights(make_config()), None, tmp_path / "home", overwrite=True)
    assert (tmp_path / "home/thesis.tex").exists()


def test_a_folder_with_more_than_an_export_in_it_is_not_replaced(tmp_path, make_config, make_weights):
    out, weights = tmp_path / "out", make_weights(make_config())
    export(make_config(), weights, None, out)
    (out / "checkpoint-500").mkdir()
    with pytest.raises(ConvertError, match=r"out holds checkpoint-500, which no conversion has made"):
        export(make_config(), weights, None, out, overwrite=True)
    assert (out / "checkpoint-500").is_dir()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there, make_config, make_weights):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link").symlink_to("scratch/real")
    weights = make_weights(make_config())
    if there:
        export(make_config(), make_weights(make_config(), seed=1), None, tmp_path / "scratch/real")
    export(make_config(), weights, None, tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink() and [path.name for path in (tmp_path / "scratch").iterdir()] == ["real"]
    torch.testing.assert_close(read(tmp_path / "link").weights["lm_head.weight"].float(),
                               weights["lm_head.weight"].bfloat16().float(), rtol=0, atol=0)  # fmt: skip

"""`megaxf checkpoint list`, `verify`, `inspect` and `diff` as a user meets them."""

import json
import re

import pytest

from launch.megaxf import main, verbs
from megaxf.checkpoint import save
from tests.checkpoint.conftest import SHAPES, Holder

CONFIG = "model: {hidden_size: 7, rope_scaling: null}\ntrain: {steps: %d}\n"
PART, SHAPE = "exp_avg", (33, 7)


@pytest.fixture
def run_folder(tmp_path, mesh, holder):
    """Steps 3 and 4, which differ in one element of one moment by a quarter, and in a setting."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    for step in (3, 4):
        engine = holder(seed=1)
        engine.tensors["lm_head.weight"][PART][5, 2] = step + 0.0
        extra = {"tokens": step * 1000, "loss": step / 8, "data": {"samples": 5}, "losses": [step / 8] * 99}
        options = {"config": CONFIG % step, "tokenizer": tmp_path / "tokenizer"}
        save(tmp_path / "run/checkpoints", step, engine, extra, mesh, **options)
    return tmp_path / "run"


@pytest.fixture
def call(capsys):
    def run(verb, *arguments):
        """(exit code, what was printed)"""
        code = main(["checkpoint", verb, *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_list(run_folder, call):
    code, out = call("list", run_folder)
    assert code == 0
    assert re.search(r"step-00000003 +3,000 +0\.3750 +[\d.]+ kB +\d+ s +complete", out)
    _, out = call("list", run_folder, "--json")
    found = json.loads(out)
    assert [(one["step"], one["tokens"], one["loss"], one["fault"]) for one in found] == [
        (3, 3000, 0.375, None),
        (4, 4000, 0.5, None),
    ]
    folder = run_folder / "checkpoints/step-00000003"
    assert found[0]["bytes"] == sum(
        path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"
    )
    (folder / "state.json").unlink()
    code, out = call("list", run_folder)
    assert code == 2 and f"cannot be loaded: {folder}/state.json is missing" in out and "step-00000004" in out


def damage(path, how):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    path.write_bytes(content if how == "flipped" else content[:-1])


@pytest.mark.parametrize("how", ["flipped", "cut"])
@pytest.mark.parametrize(
    "name", ["tensors/__0_0.distcp", "tensors/.metadata", "state.json", "config.yaml", "tokenizer/tokenizer.json"]
)
def test_verify_names_every_file_that_is_damaged(run_folder, call, name, how):
    folder = run_folder / "checkpoints"
    code, out = call("verify", run_folder)
    assert code == 0 and out.count("every checksum agrees") == 2
    damage(folder / "step-00000003" / name, how)
    (folder / "step-00000003/tensors/__0_1.distcp").unlink()
    code, out = call("verify", run_folder, "--threads", 2)
    assert code == 2 and f"step-00000003/{name} " in out and "step-00000003/tensors/__0_1.distcp is missing" in out
    assert re.search(r"step-00000004: [\d.]+ kB, every checksum agrees", out)
    code, out = call("verify", folder / "step-00000003", folder / "step-00000004", "--json")
    assert code == 2
    assert [sorted(fault["file"] for fault in one["faults"]) for one in json.loads(out)] == [
        sorted([name, "tensors/__0_1.distcp"]),
        [],
    ]


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_manifest_is_named_itself(run_folder, call, how):
    manifest = run_folder / "checkpoints/step-00000004/manifest.json"
    damage(manifest, how)
    for verb in ("verify", "list"):
        code, out = call(verb, run_folder)
        assert code == 2 and f"{manifest} is damaged" in out
    code, out = call("inspect", run_folder)
    assert code == 0 and "step-00000003: step 3" in out


@pytest.mark.parametrize(
    ("verb", "words", "sentence"),
    [("verify", ["--threads=0"], "0 should be 1 or more"), ("diff", ["RUN", "--top=-1"], "-1 should be 0 or more")],
)
def test_numbers_that_cannot_be(run_folder, call, verb, words, sentence):
    code, out = call(verb, run_folder, *(run_folder if word == "RUN" else word for word in words))
    assert code == 2 and sentence in out


def test_inspect_takes_the_newest(run_folder, call):
    code, out = call("inspect", run_folder)
    assert code == 0 and "step-00000004: step 4, 4,000 tokens seen, loss 0.5000" in out
    assert "469 parameters in 3 tensors" in out and re.search(r"lm_head.weight +33 x 7 +float32 +2.77 kB +exp_avg", out)
    assert "hidden_size: 7" in out and "samples: 5" in out
    _, out = call("inspect", run_folder / "checkpoints/step-00000003", "--json")
    found = json.loads(out)
    assert found["config"]["train"] == {"steps": 3} and found["extra"]["data"] == {"samples": 5}
    assert {one["name"]: tuple(one["shape"]) for one in found["parameters"]} == SHAPES
    assert set(found["files"]) == {"tensors", "state.json", "config.yaml", "tokenizer"}


def test_diff_finds_the_one_difference(run_folder, call):
    a, b = (run_folder / f"checkpoints/step-0000000{step}" for step in (3, 4))
    code, out = call("diff", a, run_folder)
    assert code == 0 and "train.steps: 3 -> 4" in out and "extra.tokens: 3000 -> 4000" in out
    assert re.search(r"^extra.losses: \[0.375, .{52} \.\.\. -> \[0.5, .{54} \.\.\.$", out, flags=re.MULTILINE)
    assert re.search(r"lm_head.weight/exp_avg +1 +0.25", out) and "8 tensors are equal, 1 differ" in out
    _, out = call("diff", a, b, "--json")
    found = json.loads(out)
    apart = {one["tensor"]: (one["absolute"], one["relative"]) for one in found["tensors"] if not one["equal"]}
    assert apart == {f"lm_head.weight/{PART}": (1.0, 0.25)} and not found["equal"] and len(found["tensors"]) == 9
    _, out = call("diff", a, a)
    assert "equal to the bit" in out


def test_diff_of_other_models(run_folder, call, mesh, tmp_path):
    other = Holder(shapes={**SHAPES, "lm_head.weight": (34, 7)}, moments=False, optimizer_step=0)
    save(tmp_path / "other", 0, other, {}, mesh, config="model: {hidden_size: 8}\n")
    code, out = call("diff", run_folder, tmp_path / "other")
    assert code == 0 and "model.hidden_size: 7 -> 8" in out
    assert "lm_head.weight/master: [33, 7] in a, [34, 7] in b" in out
    assert "model.norm.weight/exp_avg: [7] in a, not there in b" in out


@pytest.mark.parametrize("verb", verbs("checkpoint"))
def test_each_verb_teaches_and_refuses_what_is_no_checkpoint(verb, call, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["checkpoint", verb, "--help"])
    page = capsys.readouterr().out
    assert f"examples:\n  megaxf checkpoint {verb} " in page and max(map(len, page.splitlines())) <= 120
    code, out = call(verb, *[tmp_path / "none"] * (1 + (verb == "diff")))
    assert code == 2 and str(tmp_path / "none") in out and "megaxf: error" in out

"""init.from: a run that starts from a trained model has its weights, in any layout, and says what does not fit."""

import json
import shutil

import pytest
import tokenizers
import torch
import transformers
import yaml

from data_pipeline.format.dataset import open_dataset
from data_pipeline.tokenizer.training import train_sentencepiece
from launch.megaxf import main
from megaxf.checkpoint import CheckpointError, read_weights, resolve
from megaxf.config import validate
from megaxf.config_errors import ConfigError
from megaxf.convert import huggingface
from megaxf.convert.interface import Form, Trained
from megaxf.engine.state import read_whole
from megaxf.models.initialize import initial_weight
from megaxf.models.llama import Config, Model
from megaxf.train.initial import complete, fill, open_initial
from megaxf.train.vocabulary import PROBE, compare_tokenizers
from tests.convert.conftest import TEXT, Weights
from tests.distributed import tiny
from tests.train.kit import LENGTH, MODEL, records, start, tiny_run, weights, write_data


def trained(folder, model=MODEL, seed=0, dtype="float32", tokenizer=None):
    """A Hugging Face folder of random weights, which it gives."""
    config = Config(**model)
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in Model(config).named_parameters()}
    made = Weights({name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()})
    huggingface.write(Trained(config, made, tokenizer, dtype, []), folder, Form())
    return made


def test_training_starts_where_transformers_stands(tmp_path):
    trained(tmp_path / "hf")
    write_data(tmp_path / "data", validation_rows=10)
    run = tiny_run(tmp_path, init={"from": str(tmp_path / "hf")}, train={"steps": 2}, schedule={"warmup_steps": 0})
    _, said = start(run)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager")
    ids = torch.as_tensor(open_dataset(tmp_path / "data", "validation").read(0, 10 * LENGTH + 1).astype("int64"))
    with torch.no_grad():
        logits = oracle(ids[:-1].view(10, LENGTH)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:]).item()
    assert records(run, "evaluation")[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert "has no tokenizer: whether the ids" in open_initial(run, tmp_path / "none").warnings[0]
    shutil.rmtree(tmp_path / "hf")  # A run that goes on does not need it any more.
    settings = {**run.model_dump(mode="json"), "train": run.train.model_dump() | {"steps": 3}}
    del settings["model"]
    _, said = start(validate(complete(settings), "tests"))
    assert sum("is not read: the run goes on from its own checkpoint" in sentence for sentence in said) == 1
    onward = tiny_run(
        tmp_path,
        run_folder=str(tmp_path / "next"),
        init={"from": str(tmp_path / "run")},
        train={"steps": 2},
        schedule={"warmup_steps": 0},
    )
    start(onward)  # From a run: its weights, and nothing of its steps.
    assert records(onward)[0]["step"] == 1
    assert records(onward, "evaluation")[0]["loss"] == pytest.approx(records(run, "evaluation")[-1]["loss"], rel=1e-6)


SIZES = {**tiny.MODEL, "intermediate_size": 46}
LARGER = {**tiny.MODEL, "vocab_size": 67}


def filled(folder, extension, parallel, engine):
    """The whole weights of an engine after it was filled."""
    init = {"from": str(folder), "vocabulary_extension": extension}
    run = tiny.tiny_run(
        {**SIZES, "vocab_size": 67, "tie_word_embeddings": folder.name == "tied"},
        init=init,
        parallel=parallel,
        engine=engine,
    )
    mesh = tiny.tiny_mesh(run)
    made = tiny.tiny_engine(run, mesh)
    fill(made, open_initial(run, None), mesh)
    return {name: parts["master"] for name, parts in read_whole(made, mesh, "cpu", ("master",)).items()}


@pytest.mark.parametrize(
    ("kind", "parallel", "engine"),
    [
        ("hf", {"tensor_parallel_size": 2}, {"zero_stage": 0}),
        ("hf", {}, {"zero_stage": 2}),
        ("hf", {}, {"zero_stage": 3}),
        ("tied", {"pipeline_parallel_size": 2}, {"zero_stage": 1}),
    ],
)
def test_each_layout_is_filled(tmp_path, run_on, kind, parallel, engine):
    tied = kind == "tied"
    expected = trained(tmp_path / kind, {**SIZES, "tie_word_embeddings": tied}, dtype="bfloat16")
    for found in run_on(2, filled, tmp_path / kind, "mean", parallel, engine):
        assert set(found) == set(expected)
        for name, tensor in found.items():
            known = expected[name].bfloat16().float()
            assert torch.equal(tensor[: len(known)], known), name
            if len(tensor) > len(known):
                assert tensor.shape == (67, 33)
                mean = known.double().mean(0).expand(6, -1)
                assert torch.allclose(tensor[61:].double(), mean, rtol=1e-6, atol=1e-9), name


@pytest.mark.parametrize("kind", ["zeros", "random"])
def test_rows_of_new_tokens(tmp_path, kind):
    known = trained(tmp_path / "hf", tiny.MODEL)
    run = tiny.tiny_run(LARGER, init={"from": str(tmp_path / "hf"), "vocabulary_extension": kind})
    found = open_initial(run, None).weights
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        drawn = initial_weight(Model(Config(**LARGER)), name, torch.Size([67, 33]), run.seed)
        expected = torch.cat([known[name], torch.zeros(6, 33) if kind == "zeros" else drawn[61:]])
        assert torch.equal(found[name], expected)
        assert torch.equal(found.rows(name, 59, 5), expected[59:64]) and torch.equal(
            found.rows(name, 63, 2), expected[63:65]
        )
    assert torch.equal(found["model.norm.weight"], known["model.norm.weight"])


def opened(tmp_path, model=None, **init):
    return open_initial(tiny.tiny_run(model, init={"from": str(tmp_path / "hf"), **init}), None)


@pytest.mark.parametrize(
    ("model", "init", "message"),
    [
        ({"vocab_size": 60}, {}, r"vocab_size = 60 is smaller than the 61 of init.from.*use 61, or more"),
        (
            {"vocab_size": 67},
            {},
            r"say what the 6 new rows start as: init.vocabulary_extension = mean, zeros or random",
        ),
        ({}, {"vocabulary_extension": "mean"}, r"vocabulary_extension = mean has no effect"),
        (
            {"intermediate_size": 46, "rms_norm_eps": 0.1},
            {},
            r"intermediate_size = 46, .* has 45(?s:.)*rms_norm_eps = 0.1, .* has 1e-05",
        ),
    ],
)
def test_every_difference_is_listed(tmp_path, model, init, message):
    trained(tmp_path / "hf", tiny.MODEL)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, model, **init)


def test_a_longer_context_is_allowed_and_said(tmp_path):
    trained(tmp_path / "hf", tiny.MODEL)
    found = opened(tmp_path, {"max_position_embeddings": 64, "rope_theta": 5e5})
    assert (
        len(found.warnings) == 2
        and "model.rope_theta = 500000.0, and the model of init.from has 10000.0" in found.warnings[1]
    )


def test_an_extension_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"init.vocabulary_extension = mean has no effect without init.from"):
        tiny.tiny_run(init={"vocabulary_extension": "mean"})


def test_a_model_that_has_diverged(tmp_path):
    made = trained(tmp_path / "hf", tiny.MODEL)
    made["model.norm.weight"][3] = float("nan")
    huggingface.write(Trained(Config(**tiny.MODEL), made, None, "float32", []), tmp_path / "hf", Form(overwrite=True))
    run = tiny.tiny_run(init={"from": str(tmp_path / "hf")})
    mesh = tiny.tiny_mesh(run)
    with pytest.raises(CheckpointError, match=r"model.norm.weight of .*hf is not finite"):
        fill(tiny.tiny_engine(run, mesh), open_initial(run, None), mesh)


def test_the_model_is_taken_from_the_folder(tmp_path, capsys):
    trained(tmp_path / "hf", {**MODEL, "rms_norm_eps": 0.03})
    write_data(tmp_path / "data")
    settings = tiny_run(tmp_path).model_dump(mode="json")
    del settings["model"]
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    check = ["pretrain", str(tmp_path / "run.yaml"), "--check", f"init.from={tmp_path / 'hf'}"]
    more = ["model.vocab_size=70", "init.vocabulary_extension=zeros"]
    assert main([*check, *more]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "parameters in float32; 9 new tokens after 61: zeros" in said
    assert main([*check, *more, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["model"]["rms_norm_eps"] == 0.03 and found["settings"]["model"]["vocab_size"] == 70
    assert found["init"]["vocab_size"] == 61 and found["settings"]["init"]["from"] == str(tmp_path / "hf")
    assert main([*check, "model="]) == 0, "blank is left out"
    assert main([*check, "model.hidden_size=26"]) == 2
    assert "model.hidden_size = 26, and the model of init.from has 24" in capsys.readouterr().err


def test_a_converted_checkpoint_is_a_start_and_no_run(tmp_path, capsys):
    known = trained(tmp_path / "hf")
    write_data(tmp_path / "data")
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "made"), "--to", "megaxf"]) == 0
    assert all(torch.equal(tensor, known[name]) for name, tensor in read_weights(resolve(tmp_path / "made")).items())
    with pytest.raises(ConfigError, match=r"no config.yaml, so it is not the folder of a run"):
        start(tiny_run(tmp_path, run_folder=str(tmp_path / "made")))
    run = tiny_run(
        tmp_path,
        init={"from": str(tmp_path / "made")},
        optimizer={"learning_rate": 1e-9},
        train={"steps": 1},
        schedule={"warmup_steps": 0},
    )
    start(run)
    assert all(torch.allclose(tensor, known[name], atol=1e-8) for name, tensor in weights(run).items())


def test_tokenizers_are_compared(tmp_path):
    for name, text, size in (("a", TEXT, 300), ("b", TEXT + "zebra quagga " * 40, 310)):
        train_sentencepiece([text], tmp_path / name, vocab_size=size)
    assert compare_tokenizers(tmp_path / "a", tmp_path / "a", tmp_path) == ([], [])
    (problem,), _ = compare_tokenizers(tmp_path / "a", tmp_path / "b", tmp_path)
    assert "another tokenizer than that of init.from" in problem and f"--tokenizer {tmp_path / 'b'}" in problem
    problems, (said,) = compare_tokenizers(tmp_path / "a", None, tmp_path)
    assert problems == [] and "has no tokenizer" in said
    letters(tmp_path / "c", "<|eot|>")
    letters(tmp_path / "d", "<|endoftext|>", "<tool>")
    problems, said = compare_tokenizers(tmp_path / "c", tmp_path / "d", tmp_path)
    assert problems == [] and f"has {len(set(PROBE)) + 2} ids and that of" in said[0]
    assert "documents of the data end with <|eot|>" in said[1] and "with <|endoftext|>" in said[1]


def letters(folder, eod, *added):
    """A tokenizer of single letters with two special tokens, one of which ends documents."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(set(PROBE)))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    made.add_special_tokens(["<|endoftext|>", "<|eot|>"])
    made.add_tokens(list(added))
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eod}))

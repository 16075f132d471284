"""`megaxf convert` and `megaxf generate` on a run folder, a checkpoint and a Hugging Face folder."""

import json
import os
import signal
from argparse import ArgumentTypeError
from types import SimpleNamespace

import pytest
import tokenizers
import torch
import transformers
import yaml
from tokenizers import processors

from launch.commands.convert import parse_size
from launch.megaxf import main
from megaxf.checkpoint import find_latest, read_weights, save_weights
from megaxf.convert.casting import to_bytes
from megaxf.convert.megatron_names import share
from tests.checkpoint import buckets  # noqa: F401 - a store by the name of bucket
from tests.convert.conftest import assert_same_files

PROMPT = "def f(x):\n"


@pytest.fixture
def run_folder(tmp_path, make_config, make_weights, tokenizer_folder):
    config = make_config(vocab_size=310)
    weights = make_weights(config)
    text = yaml.safe_dump({"model": config.model_dump()}, sort_keys=False)
    save_weights(
        tmp_path / "run/checkpoints", weights.shapes, weights.__getitem__, {}, config=text, tokenizer=tokenizer_folder
    )
    return tmp_path / "run"


def megaxf(capsys, *arguments):
    """(exit code, output, errors) of the command."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_checkpoint_in_a_store(tmp_path, run_folder, capsys):
    url = f"bucket://{run_folder}/checkpoints"
    for source, out in ((run_folder, "local"), (url, "stored")):
        code, said, err = megaxf(capsys, "convert", source, tmp_path / out)
        assert code == 0, err
    assert said.startswith(f"bucket://{run_folder}/checkpoints/step-00000000 -> {tmp_path}/stored\n")
    assert_same_files(tmp_path / "local", tmp_path / "stored")
    words = ("--prompt", PROMPT, "--max-new-tokens", 4)
    assert megaxf(capsys, "generate", url, *words) == megaxf(capsys, "generate", run_folder, *words)
    code, _, err = megaxf(capsys, "generate", f"bucket://{tmp_path}/nothing", *words)
    assert code == 2 and f"bucket://{tmp_path}/nothing: no such folder" in err


def test_there_and_back_again(tmp_path, run_folder, capsys):
    code, out, err = megaxf(capsys, "convert", run_folder, tmp_path / "hf")
    assert code == 0, err
    assert "30 tensors, 54,108 parameters, 216 kB of float32 in" in out
    assert json.loads((tmp_path / "hf/config.json").read_text())["dtype"] == "float32"
    assert megaxf(capsys, "convert", tmp_path / "hf", tmp_path / "back", "--to", "megaxf")[0] == 0
    first, second = find_latest(run_folder / "checkpoints"), find_latest(tmp_path / "back/checkpoints")
    before, after = read_weights(first), read_weights(second)
    assert list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert yaml.safe_load((first / "config.yaml").read_text()) == yaml.safe_load((second / "config.yaml").read_text())
    assert megaxf(capsys, "convert", second, tmp_path / "again")[0] == 0
    assert_same_files(tmp_path / "hf", tmp_path / "again")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_weights_are_written_in_the_precision_of_the_run(tmp_path, make_config, make_weights, capsys, precision, dtype):
    config = make_config()
    weights = make_weights(config)
    text = yaml.safe_dump({"model": config.model_dump(), "train": {"precision": precision}})
    save_weights(tmp_path / "run", weights.shapes, weights.__getitem__, {}, config=text, tokenizer=None)
    code, _, err = megaxf(capsys, "convert", tmp_path / "run", tmp_path / "hf")
    assert code == 0, err
    assert json.loads((tmp_path / "hf/config.json").read_text())["dtype"] == dtype
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").dtype == getattr(torch, dtype)


@pytest.mark.parametrize("marked", [False, True])
def test_greedy_text_is_transformers_text(tmp_path, run_folder, capsys, marked):
    """Also where the tokenizer puts a mark before each text, as Llama's does."""
    assert megaxf(capsys, "convert", run_folder, tmp_path / "hf")[0] == 0
    if marked:
        file = str(tmp_path / "hf/tokenizer.json")
        tokenizer = tokenizers.Tokenizer.from_file(file)
        mark = tokenizer.id_to_token(7)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{mark} $A", special_tokens=[(mark, 7)])
        tokenizer.save(file)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(PROMPT, return_tensors="pt")
    assert (inputs.input_ids[0, 0] == 7) == marked
    tokens = oracle.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs.input_ids.shape[1] :].tolist()
    expected = tokens[: tokens.index(1)] if 1 in tokens else tokens
    own = [] if marked else [run_folder, find_latest(run_folder / "checkpoints")]
    for source in (tmp_path / "hf", *own):
        code, out, err = megaxf(
            capsys, "generate", source, "--prompt", PROMPT, "--prompt", "class", "--max-new-tokens", 24, "--json"
        )
        assert code == 0, err
        answers = [json.loads(line) for line in out.splitlines()]
        assert answers[0]["tokens"] == expected and answers[0]["prompt"] == PROMPT
        assert answers[0]["stopped_by"] == ("eos" if 1 in tokens else "length")
        assert answers[0]["continuation"]


def test_streaming_prints_what_the_whole_prints(run_folder, capsys):
    asked = ["generate", run_folder, "--prompt", PROMPT, "--max-new-tokens", 30, "--temperature", 1.0, "--seed", 3]
    code, streamed, _ = megaxf(capsys, *asked)
    assert code == 0 and streamed.startswith(PROMPT) and "<|endoftext|>" not in streamed
    assert megaxf(capsys, *asked, "--no-stream")[1] == streamed


def test_prompts_from_a_file_and_an_empty_one(tmp_path, run_folder, capsys):
    (tmp_path / "prompts").write_bytes("class A\r\n\nx\f = 1\u2028\n".encode())
    asked = ["generate", run_folder, "--prompts-file", tmp_path / "prompts", "--max-new-tokens", 3, "--json"]
    code, out, _ = megaxf(capsys, *asked)
    assert code == 0 and [json.loads(line)["prompt"] for line in out.split("\n")[:-1]] == [
        "class A",
        "",
        "x\f = 1\u2028",
    ]


def test_any_of_several_end_tokens_of_the_generation_config(tmp_path, run_folder, capsys):
    assert megaxf(capsys, "convert", run_folder, tmp_path / "hf")[0] == 0
    asked = ["generate", tmp_path / "hf", "--prompt", PROMPT, "--max-new-tokens", 8, "--json"]
    tokens = json.loads(megaxf(capsys, *asked)[1])["tokens"]
    (tmp_path / "hf/generation_config.json").write_text(json.dumps({"eos_token_id": [309, tokens[3]]}))
    answer = json.loads(megaxf(capsys, *asked)[1])
    assert answer["tokens"] == tokens[: tokens.index(tokens[3])] and answer["stopped_by"] == "eos"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["convert", "{tmp}/nothing", "{tmp}/out"], "nothing: no such folder"),
        (["convert", "{tmp}", "{tmp}/out"], "holds no complete checkpoint"),
        (["convert", "{run}", "{run}"], "run exists and is no earlier output (it has no config.json)"),
        (["convert", "{run}", "{tmp}/out", "--to", "megaxf", "--dtype", "float32"], "--dtype has no effect"),
        (["generate", "{run}"], "no prompt: give --prompt TEXT"),
        (["generate", "{run}", "--prompt", "a", "--temperature", "-1"], "temperature = -1.0 must be 0"),
        (["generate", "{run}", "--prompt", "a", "--top-p", "0.9", "--seed", "0"], "--top-p, --seed: no effect while"),
        (["generate", "{run}", "--prompt", "a" * 400], "the model's longest sequence is 96"),
        (["generate", "{run}", "--prompts-file", "{tmp}/nothing"], "nothing cannot be read"),
    ],
)
def test_faults_are_told_and_exit_2(tmp_path, run_folder, capsys, command, message):
    filled = [word.format(tmp=tmp_path, run=run_folder) for word in command]
    code, out, err = megaxf(capsys, *filled)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("name", ["tensors/__0_0.distcp", "tokenizer/tokenizer.model"])
def test_a_damaged_checkpoint_is_not_exported(tmp_path, run_folder, capsys, name):
    damaged = find_latest(run_folder / "checkpoints") / name
    content = bytearray(damaged.read_bytes())
    content[-300] ^= 1
    damaged.write_bytes(content)
    code, _, err = megaxf(capsys, "convert", run_folder, tmp_path / "hf")
    assert code == 2 and f"{name} is not what was written" in err and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(("content", "message"), [("", "is not JSON"), ("[1]", "holds a list, not settings")])
def test_damaged_settings_of_a_tokenizer(tmp_path, run_folder, capsys, content, message):
    assert megaxf(capsys, "convert", run_folder, tmp_path / "hf")[0] == 0
    (tmp_path / "hf/tokenizer_config.json").write_text(content)
    code, _, err = megaxf(capsys, "convert", tmp_path / "hf", tmp_path / "again")
    assert code == 2 and f"{tmp_path / 'hf'}: tokenizer_config.json {message}" in err


def test_a_run_is_never_replaced(run_folder, capsys):
    (run_folder / "config.yaml").touch()
    code, _, err = megaxf(capsys, "convert", run_folder, run_folder, "--to", "megaxf", "--overwrite")
    assert code == 2 and "is a run; choose another name" in err and find_latest(run_folder / "checkpoints")


def test_a_checkpoint_without_a_tokenizer(tmp_path, make_config, make_weights, capsys):
    config = make_config()
    weights = make_weights(config)
    text = yaml.safe_dump({"model": config.model_dump()}, sort_keys=False)
    run = tmp_path / "run"
    save_weights(run / "checkpoints", weights.shapes, weights.__getitem__, {}, config=text, tokenizer=None)
    code, out, _ = megaxf(capsys, "convert", run, tmp_path / "hf")
    assert code == 0 and "without a tokenizer" in out and not (tmp_path / "hf/tokenizer.json").exists()
    code, _, err = megaxf(capsys, "generate", run, "--prompt", "a")
    assert code == 2 and "has no tokenizer" in err


def test_gguf_by_the_name_of_the_file_and_as_json(tmp_path, run_folder, capsys):
    code, out, err = megaxf(
        capsys, "convert", run_folder, tmp_path / "m.gguf", "--dtype", "bfloat16", "--json", "--verify"
    )
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["tensors"], facts["parameters"], facts["dtype"], facts["notes"]) == (30, 54108, "bfloat16", [])
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF" and facts["bytes"] > 2 * 54108
    assert facts["verified"]["tokens"] == 96 and facts["verified"]["everywhere"] < 1e-4
    code, _, err = megaxf(capsys, "convert", run_folder, tmp_path / "hf", "--dtype", "q8_0")
    assert code == 2 and "--dtype q8_0 is not one that this format has; use one of bfloat16" in err


TARGETS = ("huggingface", "gguf", "deepspeed", "megatron", "megatron_dist", "megaxf")


@pytest.mark.parametrize("to", TARGETS)
def test_what_does_not_compute_the_same_gets_no_name(tmp_path, run_folder, capsys, monkeypatch, to):
    """And what has the name stays: here a sound output, which a second conversion is to replace."""
    command = ["convert", run_folder, tmp_path / "out", "--to", to, "--verify", "--overwrite"]
    assert megaxf(capsys, *command)[0] == 0
    out = tmp_path / "out"
    first = {path: path.read_bytes() for path in [out, *out.rglob("*")] if path.is_file()}
    for module in ("safetensors_files", "gguf"):
        monkeypatch.setattr(f"megaxf.convert.{module}.to_bytes", lambda name, x, dtype: to_bytes(name, x * 1.5, dtype))
    monkeypatch.setattr("megaxf.convert.deepspeed._own", lambda x: x.float() * 1.5)
    monkeypatch.setattr("megaxf.convert.megatron.share", lambda *given: share(*given) * 1.5)
    monkeypatch.setattr("megaxf.train.as_checkpoint.save_weights", spoiling_save)
    code, said, err = megaxf(capsys, *command)
    assert (code, said) == (2, "") and "the output does not compute what" in err and "it was not kept" in err
    assert {path: path.read_bytes() for path in [out, *out.rglob("*")] if path.is_file()} == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def spoiling_save(folder, shapes, read, *others, **options):
    return save_weights(folder, shapes, lambda name: read(name) * 1.5, *others, **options)


@pytest.mark.parametrize("to", TARGETS)
def test_a_disk_that_is_too_small_is_found_before_anything_is_written(tmp_path, run_folder, capsys, monkeypatch, to):
    """54,108 parameters in fp32, for DeepSpeed with AdamW's moments, for Megatron-LM twice; 1 MB for the rest."""
    needed = 4 * 54_108 * {"deepspeed": 3, "megatron": 2, "megatron_dist": 2}.get(to, 1) + (1 << 20)
    free = needed - 1
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    command = ["convert", run_folder, tmp_path / "far" / "out", "--to", to]
    code, said, err = megaxf(capsys, *command)
    assert (
        (code, said) == (2, "") and f"out was not made: it needs {needed:,} bytes" in err and f"and {free:,} (" in err
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    free = 10**9
    assert megaxf(capsys, *command)[0] == 0


def test_several_end_tokens_come_back(tmp_path, run_folder, capsys):
    assert megaxf(capsys, "convert", run_folder, tmp_path / "hf")[0] == 0
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((tmp_path / "hf" / name).read_text())
        (tmp_path / "hf" / name).write_text(json.dumps(settings | {"eos_token_id": [1, 7, 5]}, indent=2) + "\n")
    assert megaxf(capsys, "convert", tmp_path / "hf", tmp_path / "back", "--to", "megaxf")[0] == 0
    assert megaxf(capsys, "convert", tmp_path / "back", tmp_path / "again")[0] == 0
    assert_same_files(tmp_path / "hf", tmp_path / "again")


def test_sizes():
    assert [parse_size(text) for text in ("5GB", "1.5mb", "64KB", "1000")] == [5_000_000_000, 1_500_000, 64_000, 1000]
    for text in ("5 parsecs", "0", "-1GB", "nan", "inf"):
        with pytest.raises(ArgumentTypeError, match="is not a size; write 5GB"):
            parse_size(text)


def test_what_a_signal_interrupts_leaves_nothing(tmp_path, run_folder, monkeypatch):
    def interrupt(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("megaxf.convert.huggingface.write_files", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(run_folder), str(tmp_path / "out/hf")])
    assert ended.value.code == 143 and not list((tmp_path / "out").iterdir())
    assert signal.getsignal(signal.SIGTERM) == before

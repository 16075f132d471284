"""`megaxf generate`: stops, scores, queues and large models at the command line; several ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from data_pipeline.tokenizer.base import load_tokenizer
from data_pipeline.tokenizer.training import train_sentencepiece
from launch.megaxf import main
from megaxf.checkpoint import save_weights

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["def f(x):\n", "class", "x = 1"]


@pytest.fixture
def run_folder(tmp_path, make_model):
    """A run folder with a checkpoint of a small model."""
    (tmp_path / "tokenizer").mkdir()
    train_sentencepiece(
        ["def f(x):\n    return x + 1\n\nclass A:\n    pass\n" * 20], tmp_path / "tokenizer", vocab_size=300
    )
    weights = dict(make_model(vocab_size=300).named_parameters())
    text = yaml.safe_dump({"model": make_model(vocab_size=300).config.model_dump()})
    save_weights(
        tmp_path / "run/checkpoints", {name: weight.shape for name, weight in weights.items()},
        lambda name: weights[name].detach(), {}, config=text, tokenizer=tmp_path / "tokenizer",
    )  # fmt: skip
    return tmp_path / "run"


@pytest.fixture
def answers(run_folder, capsys):
    """`answers(*options)`: the objects that the command prints."""

    def ask(*options):
        words = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
        code = main(["generate", str(run_folder), *words, "--json", *map(str, options)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return [json.loads(line) for line in captured.out.splitlines()]

    return ask


def test_a_stop_string_cuts_the_text(run_folder, answers):
    free = answers("--max-new-tokens", 24)
    stop = free[0]["continuation"][5:8]
    tokenizer = load_tokenizer(run_folder.parent / "tokenizer")
    for answer, whole in zip(answers("--max-new-tokens", 24, "--stop", stop), free, strict=True):
        text, found, _ = whole["continuation"].partition(stop)
        assert answer["continuation"] == text
        assert answer["stopped_by"] == ("stop" if found else whole["stopped_by"])
        assert answer["tokens"] == whole["tokens"][: len(answer["tokens"])]
        assert answer["prompt_tokens"] == tokenizer.encode(answer["prompt"])
    assert stop not in answers("--max-new-tokens", 24, "--stop", stop)[0]["continuation"]


def test_a_stop_id(answers):
    free = answers("--max-new-tokens", 12)
    token = free[1]["tokens"][4]
    stopped = answers("--max-new-tokens", 12, "--stop-id", token)[1]
    assert stopped["tokens"] == free[1]["tokens"][: free[1]["tokens"].index(token)]
    assert stopped["stopped_by"] == "stop"


def test_queue_caches_disk_and_scores_change_nothing(answers):
    free = answers("--max-new-tokens", 9)
    assert "logprobs" not in free[0]
    for options in (
        ["--batch-size", 1],
        ["--cache", "paged", "--batch-size", 2],
        ["--device-map", "auto", "--max-memory", "cpu=120KB"],
        ["--logprobs", "--prompt-logprobs"],
    ):
        found = answers("--max-new-tokens", 9, *options)
        assert [one["tokens"] for one in found] == [one["tokens"] for one in free], options
    assert [len(one["logprobs"]) for one in found] == [len(one["tokens"]) for one in found]
    assert [len(one["prompt_logprobs"]) for one in found] == [len(one["prompt_tokens"]) - 1 for one in found]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--logprobs"], "have an effect with --json only"),
        (["--max-memory", "cpu=1GB"], "--max-memory has an effect with --device-map auto only"),
        (["--device", "nosuch"], "--device nosuch cannot be used here: "),
        (["--device", "cuda:99"], "--device cuda:99 cannot be used here: "),
        (["--device", "meta"], "--device meta cannot be used here: "),
        (["--device-map", "auto", "--device", "cpu"], "use either it or --device"),
        (["--device-map", "auto", "--max-memory", "1GB"], "--max-memory 1GB: write GPU=SIZE or cpu=SIZE"),
        (["--device-map", "auto", "--max-memory", "cpu=lots"], "--max-memory cpu=lots: "),
        (["--device-map", "auto", "--max-memory", "cpu=1KB"], "max-memory cpu = 1,000 bytes is too little"),
        (["--cache", "sliding"], "the model has no sliding_window"),
        (["--stop", ""], "a stop string is empty"),
        (["--stop-id", "300"], "stop id 300 is beyond the vocabulary of 300"),
        (["--batch-size", "0"], "batch_size = 0 must be 1 or more"),
        (["--repetition-penalty", "-1"], "repetition-penalty = -1.0 must be above 0"),
    ],
)
def test_faults(run_folder, capsys, options, message):
    assert main(["generate", str(run_folder), "--prompt", "a", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.long
def test_two_ranks_under_torchrun(run_folder, answers):
    """A launch of its own costs seconds; tests/generate/test_loading.py has ranks of all families."""
    options = ["--max-new-tokens", "9", "--temperature", "0.8", "--seed", "3"]
    words = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "launch" / "generate.py"), str(run_folder), *words, "--json", *options]
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == answers(*options)

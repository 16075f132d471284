"""`make demo`: the whole path on one machine, on the Python standard library's own source.

Each stage is a megaxf command, printed before it runs; a stage whose result is there is passed over, so an interrupted
demo goes on where it stood. Everything lies in runs/demo.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path("runs/demo")
TOKENS, RUN, EXPORT = FOLDER / "tokens", FOLDER / "run", FOLDER / "huggingface"
RUN_FILE = "configs/runs/demo.yaml"
PROMPTS = ("def __init__(self", "import os\n", "class Test")

LARGE = "model=llama3-8b data.sequence_length=8192 train.global_batch_size=512"
NEXT = (
    (f'.venv/bin/megaxf generate {EXPORT} --prompt "class " --temperature 0.8 --seed 1', "let it write something else"),
    (f".venv/bin/megaxf pretrain {RUN_FILE} train.steps=1200", "train on where it stopped"),
    (f".venv/bin/megaxf checkpoint verify {RUN}", "is every byte of the checkpoints as it was written?"),
    (f".venv/bin/megaxf pretrain {RUN_FILE} {LARGE} --check --world-size 64", "check a run for a cluster from here"),
)

console = Console()


def main() -> int:
    """Run all stages, then say what was done."""
    started = time.monotonic()
    if not (TOKENS / "manifest.json").exists():
        stage("prepare: source code to tokens", prepare_command())
    stage("pretrain: two processes, ZeRO-1", pretrain_command())
    if not (EXPORT / "config.json").exists():
        stage("convert: to a Hugging Face folder", megaxf("convert", RUN, EXPORT))
    stage("generate: three prompts", generate_command())
    summary(time.monotonic() - started)
    return 0


def prepare_command() -> list[str]:
    """Tokenise the standard library with a tokenizer trained on it."""
    library = sysconfig.get_paths()["stdlib"]
    return megaxf(
        "prepare", library, "--include", "*.py", "--exclude", "site-packages", "--name", "python",
        "--train-tokenizer", "bpe", "--vocab-size", "2048", "--validation-fraction", "0.02", "--on-error", "skip",
        "--output", TOKENS,
    )  # fmt: skip


def pretrain_command() -> list[str]:
    """The run file under torchrun with two processes, of as many threads as it would choose itself, with a warning."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return ["env", "OMP_NUM_THREADS=1", *torchrun, "launch/pretrain.py", RUN_FILE]


def generate_command() -> list[str]:
    """The same prompts with the same draws each time."""
    prompts = [argument for prompt in PROMPTS for argument in ("--prompt", prompt)]
    return megaxf("generate", EXPORT, *prompts, "--max-new-tokens", 64, "--temperature", 0.6, "--seed", 1)


def megaxf(*arguments: object) -> list[str]:
    """A megaxf command of this Python."""
    return [sys.executable, "-m", "launch.megaxf", *map(str, arguments)]


def stage(title: str, command: Sequence[str]) -> None:
    """Show and run one command; leave with its exit code where it fails."""
    console.rule(f"[bold]{title}")
    shown = ["python" if part == sys.executable else part for part in command]
    console.print("$ " + subprocess.list2cmdline(shown), style="dim", highlight=False, soft_wrap=True)
    code = exit_code(command)
    if code:
        console.print(f"[red]stopped with exit code {code}[/]; `make demo` goes on from here")
        raise SystemExit(code)


def exit_code(command: Sequence[str]) -> int:
    """Run a command to its end, also where it is asked to stop: it hears of that, and has all the time to save."""
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # by the terminal, which has told the command, too
            continue


def summary(seconds: float) -> None:
    """What was done, where it lies, and what to try next."""
    records = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "train"]
    first, *_, last = (record["loss"] for record in records if record["kind"] == "evaluation")
    manifest = json.loads((TOKENS / "manifest.json").read_text())
    console.rule("[bold]done")
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row("trained", f"{len(steps):,} steps, {steps[-1]['tokens']:,} tokens of Python source")
    uniform = math.log(manifest["vocab_size"])
    table.add_row("validation loss", f"{first:.2f} -> [bold]{last:.2f}[/] nats a token (guessing: {uniform:.2f})")
    table.add_row("this call took", f"{seconds / 60:.1f} minutes")
    table.add_row("loss curve", str(RUN / "loss.png"))
    table.add_row("all curves", f".venv/bin/tensorboard --logdir {RUN / 'tensorboard'}")
    table.add_row("the model", f"{EXPORT}, a folder that transformers opens")
    console.print(table)
    console.print("\ntry next", style="bold")
    for command, purpose in NEXT:
        console.print(f"  {command}\n      [dim]{purpose}[/]", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())

"""`make demo`: the whole path on one machine, on the Python standard library's own source.

Each stage is a megaxf command, printed before it runs; a stage whose result is there is passed over, so an interrupted
demo goes on where it stood. Everything lies in runs/demo.
"""

from __future__ import annotations

import json
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

console = Console()


def main() -> int:
    """Run all stages, then say what was done."""
    started = time.monotonic()
    if not (TOKENS / "manifest.json").exists():
        stage("prepare: source code to tokens", prepare_command())
    stage("pretrain: two processes, ZeRO-1", pretrain_command())
    if not (EXPORT / "config.json").exists():
        stage("convert: to a Hugging Face folder", megaxf("convert", RUN, EXPORT))
    generate = [argument for prompt in PROMPTS for argument in ("--prompt", prompt)]
    stage("generate: three prompts", megaxf("generate", EXPORT, *generate, "--max-new-tokens", "64"))
    summary(time.monotonic() - started)
    return 0


def prepare_command() -> list[str]:
    """Tokenise the standard library with a tokenizer trained on it."""
    library = sysconfig.get_paths()["stdlib"]
    return megaxf(
        "prepare", library, "--include", "*.py", "--exclude", "site-packages", "--name", "python",
        "--train-tokenizer", "bpe", "--vocab-size", "4096", "--validation-fraction", "0.02", "--output", TOKENS,
    )  # fmt: skip


def pretrain_command() -> list[str]:
    """The run file under torchrun with two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*torchrun, "launch/pretrain.py", RUN_FILE]


def megaxf(*arguments: object) -> list[str]:
    """A megaxf command of this Python."""
    return [sys.executable, "-m", "launch.megaxf", *map(str, arguments)]


def stage(title: str, command: Sequence[str]) -> None:
    """Show and run one command; leave with its exit code where it fails."""
    console.rule(f"[bold]{title}")
    shown = ["python" if part == sys.executable else part for part in command]
    console.print("$ " + subprocess.list2cmdline(shown), style="dim", highlight=False, soft_wrap=True)
    code = subprocess.run(command).returncode
    if code:
        console.print(f"[red]stopped with exit code {code}[/]; `make demo` goes on from here")
        raise SystemExit(code)


def summary(seconds: float) -> None:
    """What was done, where it lies, and what to try next."""
    steps = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    console.print(steps[-1], seconds)
    console.print(Table())


if __name__ == "__main__":
    sys.exit(main())

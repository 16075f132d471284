"""Every command of the README and of docs/ runs as it is written there, page after page in one folder."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from megaxf.plan.laws.table import surface
from tests.distributed.forking import run_megaxf

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    *(f"docs/{page}.md" for page in ("plan", "prepare", "pretrain", "checkpoint", "data", "convert", "generate")),
    "docs/evaluate.md",
    "docs/cluster.md",
    "docs/doctor.md",
]
SOURCES = (
    "argparse.py",
    "ast.py",
    "bisect.py",
    "calendar.py",
    "cmd.py",
    "codecs.py",
    "csv.py",
    "difflib.py",
    "enum.py",
)


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines behind a dollar sign."""
    return [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the pages take as given: some texts, a few prompts, the results of a ladder of runs, the launch folder."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "texts").mkdir()
    for number, name in enumerate(SOURCES * 2):
        text = (Path(sysconfig.get_paths()["stdlib"]) / name).read_text()
        (folder / "texts" / f"{number}-{name}").write_text(f"# copy {number}\n{text}")
    lines = [json.dumps({"text": f"Note {number} is about the number {number}. " * 5}) for number in range(60)]
    (folder / "notes.jsonl").write_text("\n".join(lines))
    (folder / "prompts.txt").write_text("import os\nclass Parser\n")
    write_results(folder / "runs.csv")
    (folder / "launch").symlink_to(ROOT / "launch")
    return folder


def write_results(path: Path) -> None:
    """Made-up runs that follow a published law but for 0.8 % of noise: 6 budgets of 9 sizes."""
    law, noise = surface("epoch"), np.random.default_rng(1)
    rows = ["params,tokens,loss"]
    for flops in np.geomspace(6e18, 3e21, 6):
        for size in law.parameters(flops) * np.geomspace(1 / 6, 6, 9):
            tokens = flops / 6 / size
            rows.append(
                f"{size:.6g},{tokens:.6g},{law.loss(size, tokens) * np.exp(0.008 * noise.standard_normal()):.5f}"
            )
    path.write_text("\n".join(rows) + "\n")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as it stands, with this environment's programs."""
    program, *words = shlex.split(command)
    if program == "megaxf":
        return run_megaxf(words, folder)
    assert program == "torchrun"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run([*torchrun, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def made_by(command: str) -> str | None:
    """The folder that a command refuses to make twice."""
    _, verb, *words = shlex.split(command)
    place = {"prepare": -1, "convert": 1}.get(verb)
    return None if place is None else words[place]


LONGER = ("docs/plan.md", "docs/pretrain.md")
"""Pages of many commands that take minutes; each verb has tests of its own too."""


def run_page(page, folder):
    assert commands(page), f"{page} has no command"
    for block in blocks(page, "yaml"):
        name = re.match(r"# (\S+\.yaml)\n", block).group(1)
        (folder / name).write_text(block)
    for command in commands(page):
        if output := made_by(command):  # by an earlier page, too
            shutil.rmtree(folder / output, ignore_errors=True)
        done = run(command, folder)
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page in LONGER else []) for page in PAGES]
)
def test_commands_of_the_page_run(page, folder):
    readme = PAGES[0]
    if page != readme and not (folder / "tokens").exists():  # what the README makes, the other pages take as given
        run_page(readme, folder)
    run_page(page, folder)


def test_every_page_is_run_or_has_no_command():
    pages = {"README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))}
    assert {page for page in pages if commands(page)} == set(PAGES)

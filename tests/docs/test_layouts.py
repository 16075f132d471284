"""The table of refused layouts in docs/pretrain.md: each row is what the program says, and no sentence is left out."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from megaxf.config import ConfigError, load_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pretrain.md").read_text()
SECTION = PAGE.partition("### What is refused")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `(.+?)` \| (.+) \|$", SECTION, flags=re.MULTILINE)


@pytest.fixture
def run_file(tmp_path):
    """The first run file of the page."""
    path = tmp_path / "run.yaml"
    path.write_text(re.search(r"^```yaml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL).group(1))
    return path


@pytest.mark.parametrize(("settings", "answer"), ROWS)
def test_each_row_is_the_whole_answer(run_file, settings, answer):
    words, world_size = shlex.split(settings), None
    if "--world-size" in words:
        world_size = int(words.pop())
        assert words.pop() == "--world-size"
    with pytest.raises(ConfigError) as caught:
        load_run(run_file, words, world_size)
    assert caught.value.problems == [answer]


def test_every_sentence_of_the_checks_has_a_row():
    tree = ast.parse((ROOT / "megaxf" / "config_layout.py").read_text())
    sentences = [node.value for node in ast.walk(tree) if isinstance(node, ast.Yield)]
    assert len(sentences) >= 20
    for sentence in sentences:
        fixed = [part.value for part in getattr(sentence, "values", [sentence]) if isinstance(part, ast.Constant)]
        assert any(all(part in answer for part in fixed) for _, answer in ROWS), "".join(fixed)

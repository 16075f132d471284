"""The verbs of `megaxf plan`: the group, its help, its faults."""

import json
import subprocess
import sys

import pytest

from launch.megaxf import command, main, verbs


def test_group_lists_its_verbs(capsys):
    assert main(["plan"]) == 0
    page = capsys.readouterr().out
    for words in (["plan", "--help"], ["plan", "help"]):
        assert main(words) == 0
        assert capsys.readouterr().out == page
    listed = [line.split()[0] for line in page.split("verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert listed == verbs("plan")
    assert {"laws"} <= set(listed)
    assert all(command(f"plan {verb}").HELP in page for verb in listed)
    assert verbs("prepare") == []


@pytest.mark.parametrize(("word", "advice"), [("law", "did you mean laws?"), ("--flops", "the verbs are ")])
def test_unknown_verb_of_the_group(capsys, word, advice):
    assert main(["plan", word]) == 2
    assert f"{word!r} is not a verb of plan; {advice}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["plan", "--help"], *(["plan", verb, "--help"] for verb in verbs("plan"))])
def test_help_is_light(words):
    code = (
        f"import sys; from launch.megaxf import main\ntry: main({words})\nexcept SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'numpy', 'scipy', 'matplotlib', 'pydantic'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: megaxf {' '.join(words[:-1])}" in done.stdout


def test_laws(capsys):
    assert main(["plan", "laws", "--flops", "5.76e23"]) == 0
    assert "10.4 to 29.1" in capsys.readouterr().out
    assert main(["plan", "laws", "--params", "8b", "--tokens", "15T", "--law", "llama3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["question"] == {"parameters": 8e9, "tokens": 15e12}
    assert main(["plan", "laws", "--list"]) == 0
    assert "twenty_to_one" in capsys.readouterr().out
    assert main(["plan", "laws", "--flops", "1e20", "--law", "hofmann"]) == 2
    assert "did you mean hoffmann" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "laws", "--flops", "many"])
    assert "'many'" in capsys.readouterr().err

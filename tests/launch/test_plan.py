"""The verbs of `megaxf plan`: the group, its help, its faults."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launch.megaxf import command, main, verbs
from megaxf.config import load_run, to_yaml
from megaxf.plan.parameters import count
from tests.plan.fit.kit import TRUTH, runs


def test_group_lists_its_verbs(capsys):
    assert main(["plan"]) == 0
    page = capsys.readouterr().out
    for words in (["plan", "--help"], ["plan", "help"]):
        assert main(words) == 0
        assert capsys.readouterr().out == page
    listed = [line.split()[0] for line in page.split("verbs:\n")[1].split("\n\n")[0].splitlines()]
    assert listed == verbs("plan")
    assert {"fit", "ladder", "laws"} <= set(listed)
    assert all(command(f"plan {verb}").HELP in page for verb in listed)
    assert verbs("prepare") == []


@pytest.mark.parametrize(("word", "advice"), [("law", "did you mean laws?"), ("quickly", "the verbs are ")])
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


@pytest.mark.parametrize(
    "words",
    [
        "plan layout tiny --gpu h100 --batch 8",
        "plan memory {root}/configs/runs/llama3-8b-64.yaml --world-size 64",
    ],
)
def test_planning_does_without_torch(words):
    """Its import takes seconds."""
    words = words.format(root=Path(__file__).parents[2]).split()
    code = f"import sys; from launch.megaxf import main\nmain({words})\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "activations" in done.stdout


def test_laws(capsys):
    assert main(["plan", "laws", "--flops", "5.76e23"]) == 0
    assert "10.4 to 29.1" in capsys.readouterr().out
    assert main(["plan", "laws", "--params", "8b", "--tokens", "15T", "--law", "llama3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["question"] == {"parameters": 8e9, "tokens": 15e12}
    assert main(["plan", "laws", "--list"]) == 0
    assert "twenty_to_one" in capsys.readouterr().out
    assert main(["plan", "laws", "--list", "--json"]) == 0
    assert {row["name"]: row["counts"] for row in json.loads(capsys.readouterr().out)}["minicpm"] == "non-embedding"
    assert main(["plan", "laws", "--flops", "1e20", "--law", "hofmann"]) == 2
    assert "did you mean hoffmann" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "laws", "--flops", "many"])
    assert "'many'" in capsys.readouterr().err


def test_fit_of_a_table(capsys, tmp_path):
    """From a CSV to a law that the next command asks."""
    table = tmp_path / "runs.csv"
    rows = [f"{c.parameters},{c.tokens[0]},{c.losses[0]},0" for c in runs(noise=0.001)]
    table.write_text("\n".join(["params,tokens,loss,outlier", *rows, "1e9,1e9,9,1"]))
    folder = tmp_path / "fit"
    options = ["--bootstraps", "100", "--flops", "1e22"]
    assert main(["plan", "fit", str(table), "-o", str(folder), *options]) == 0
    printed = capsys.readouterr()
    assert "N* ~ C^a by three approaches" in printed.out
    assert f"written: {folder / 'law.json'}" in printed.err
    files = {"law.json", "fit.json", "fit.png", "frontier.png", "isoflop.png"}
    assert {path.name for path in folder.iterdir()} == files
    assert main(["plan", "fit", str(table), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((folder / "fit.json").read_text())
    assert (found["runs"], found["left_out"], found["unfinished"]) == (len(rows), 1, [])
    assert main(["plan", "laws", "--flops", "1e22", "--law", str(folder / "law.json"), "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)["training"]
    assert asked["parameters"] == found["predictions"][0]["parameters"]["value"]
    low, _, high = asked["interval"]["parameters"]
    assert [low, high] == found["predictions"][0]["parameters"]["interval"]
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "fit", str(table), "--counts", "all parameters"])
    assert "choose from total, non-embedding, matrices with the head" in capsys.readouterr().err.replace("'", "")
    assert main(["plan", "fit", str(tmp_path / "absent.csv")]) == 2
    assert "absent.csv cannot be read" in capsys.readouterr().err


def test_ladder_and_fit_of_its_runs(capsys, tmp_path):
    """The ladder's files are valid runs; with losses of a known law in their folders, the fit finds that law."""
    settings = ["train.precision=fp32", "data.sequence_length=64", "train.micro_batch_size=1"]
    folder = tmp_path / "my ladder"
    base = str(Path(__file__).resolve().parents[2] / "configs" / "runs" / "tiny.yaml")
    words = ["plan", "ladder", base, *settings, "--flops", "3e15", "--budgets", "3", "--sizes", "5", "-o", str(folder)]
    assert main(words) == 0
    page = capsys.readouterr().out
    assert "15 runs, " in page and f"megaxf plan fit '{folder}'" in page
    files = (folder / "runs.txt").read_text().splitlines()
    assert len(files) == 15
    for file in files:
        run = load_run(file)
        place = Path(run.run_folder)
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(to_yaml(run))
        per_step, last = run.train.global_batch_size * 64, run.train.steps
        size = count(run.model).total
        records = [
            {"kind": "train", "step": step, "tokens": step * per_step, "loss": TRUTH.loss(size, step * per_step)}
            for step in (last // 2, last)
        ]
        # The training loss is smoothed over steps; what the fit takes is the validation loss.
        records.append(records[-1] | {"kind": "evaluation", "source": "text", "counted_tokens": 9})
        (place / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    stopped = folder / "stopped"
    shutil.copytree(place, stopped)
    (stopped / "metrics.jsonl").write_text(json.dumps(records[0]) + "\n")
    assert main(["plan", "fit", str(folder), "--bootstraps", "50", "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["runs"], found["unfinished"]) == (15, ["stopped"])
    assert "note: left out, since not trained to the end: stopped" in printed.err
    assert found["approach3"]["constants"] == pytest.approx(vars(TRUTH), rel=1e-3)

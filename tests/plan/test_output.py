"""Places that cannot be written to are said before the work, and files are whole or not there."""

import json
from pathlib import Path

import numpy as np
import pytest

from launch.megaxf import main
from megaxf.plan.errors import PlanError
from megaxf.plan.output import as_json, check_file, check_folder, written

VERBS = [
    ("memory {run} -o", ".png"),
    ("throughput {run} --gpu h100 -o", ".png"),
    ("throughput {run} --gpu h100 --timeline", ".png"),
    ("scaling tiny --gpu h100 --nodes 1 --batch 8 --tokens 1b --sequence-length 64 -o", ".png"),
    ("schedule -o", ".png"),
    ("shape --params 1b -o", ".yaml"),
    ("layout tiny --gpu h100 --batch 8 --sequence-length 64 -o", ".yaml"),
    ("budget --flops 1e19 --gpu h100 -o", ".yaml"),
    ("calibrate -o", ".json"),
]


@pytest.mark.parametrize(("words", "ending"), VERBS)
def test_files_of_the_verbs(words, ending, tmp_path, capsys):
    run = tmp_path / "run.yaml"
    (tmp_path / f"folder{ending}").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (
        (f"none/x{ending}", "none does not exist; make it first"),
        (f"folder{ending}", "is a folder; name a file in it"),
        (f"file/x{ending}", "file is no folder"),
        *(
            [("x", "does not end as a picture does; use one of .png"), ("x.pdfx", "use one of")][
                : 2 * (ending == ".png")
            ]
        ),
    ):
        # Said before the run file is looked for, which is not there.
        assert main(["plan", *words.format(run=run).split(), str(tmp_path / name)]) == 2, name
        printed = capsys.readouterr()
        assert message in printed.err and str(tmp_path / name) in printed.err and printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", f"folder{ending}"]


@pytest.mark.parametrize("words", ["fit runs.csv", "ladder run.yaml --flops 1e15"])
def test_folders_of_the_verbs(words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "deep" / "er"):
        assert main(["plan", *words.split(), "-o", str(place)]) == 2
        assert f"-o {place} cannot be written: {tmp_path / 'file'} is no folder" in capsys.readouterr().err


def test_what_is_read_is_not_lost(tmp_path, capsys):
    model = tmp_path / "model.yaml"
    assert main(["plan", "shape", "--params", "10m", "-o", str(model)]) == 0
    before, link = model.read_text(), tmp_path / "link.yaml"
    link.symlink_to(model)
    words = ["plan", "layout", str(model), "--gpu", "h100", "--batch", "8", "-o", str(link)]
    assert main(words) == 2
    assert "is a file that is read here, and would be lost; use another name" in capsys.readouterr().err
    assert model.read_text() == before


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), written(path) as part:
        part.write_text("half")
        raise RuntimeError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with written(path) as part:
        part.write_text("after")
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]
    full = r"x.txt cannot be written: No space left on device; use another place for -o"
    with pytest.raises(PlanError, match=full), written(path):
        raise OSError(28, "No space left on device")


def test_what_is_no_plain_file_stays():
    check_file(Path("/dev/null"))
    with written(Path("/dev/null")) as part:
        part.write_text("nothing")
    assert Path("/dev/null").is_char_device()


def test_nothing_is_asked_for():
    check_file(None)
    check_folder(None)


def test_a_folder_may_be_made(tmp_path):
    check_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_json_has_no_infinity():
    found = {"a": float("inf"), "b": [1.5, (float("nan"), "x")], "c": np.float64("-inf"), "d": True}
    assert json.loads(as_json(found)) == {"a": None, "b": [1.5, [None, "x"]], "c": None, "d": True}

"""A build that is killed goes on, and gives the bytes of one that was not."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.folder import Building
from data_pipeline.format.manifest import read_manifest
from data_pipeline.prepare import build as steps
from data_pipeline.prepare import shuffle
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.plan import make_plan
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.sources.base import ReadOptions
from tests.data_pipeline.kit import byte_tokenizer, files_of, write_jsonl
from tests.data_pipeline.test_prepare import is_running, wait_until

UNITS = 10


class Notes(PrepareProgress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def options(tmp_path) -> dict[str, object]:
    texts = [f"{k % 70:03d}" * (k % 7 + 1) for k in range(100)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    return {
        "inputs": (path,),
        "tokenizer": str(byte_tokenizer(tmp_path / "byte")),
        "tokenizer_backend": "reference",
        "unit_bytes": Path(path).stat().st_size // UNITS + 1,
        "validation_fraction": 0.2,
        "shard_tokens": 250,
        "deduplicate": True,
    }


def run(options: dict[str, object], output: Path, **changes: object) -> list[str]:
    notes = Notes()
    steps.prepare(PrepareOptions(output=str(output), **options | changes), notes)  # type: ignore[arg-type]
    return notes.said


def die_at(name: str, call: int) -> None:
    """From now on this process is killed in the n-th call of a function."""
    holder, attribute = name.rsplit(".", 1)
    module = importlib.import_module(f"data_pipeline.prepare.{holder}")
    real, calls = getattr(module, attribute), [0]

    def wrapped(*values: object, **named: object) -> object:
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*values, **named)

    setattr(module, attribute, wrapped)


def killed_run(options: dict[str, object], output: Path, name: str, call: int) -> None:
    """In a child, that nothing is tidied up in."""
    if not (child := os.fork()):
        die_at(name, call)
        run(options, output)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"{name} was not called {call} times"


@pytest.mark.parametrize(
    ("name", "call", "units"),
    [
        ("build.with_fast_path", 1, 0),
        ("place.write_whole", 1, 0),
        ("encode.hash_texts", 4, 3),
        ("units.write_whole", 1, 0),
        ("units.write_whole", UNITS, UNITS - 1),
        ("build.mark_duplicates", 1, UNITS),
        ("duplicates._mark", 1, UNITS),
        ("build.decide", 1, UNITS),
        ("decide.write_whole", 1, UNITS),
        ("shuffle.permute", 5, UNITS),
        ("shuffle.write_record", 7, UNITS),
        ("shuffle.write_record", UNITS + 2, UNITS),
        ("assemble._origins", 3, UNITS),
        ("assemble.write_whole", 1, UNITS),
        ("assemble.write_whole", 3, UNITS),
        ("build.finish", 1, UNITS),
        ("finish.write_manifest", 1, UNITS),
        ("finish.replace_folder", 1, UNITS),
    ],
)
def test_a_kill_at_any_moment_costs_only_what_was_not_done(tmp_path, options, monkeypatch, name, call, units):
    monkeypatch.setattr(shuffle, "FAN_IN", 4)
    run(options, tmp_path / "whole/set")
    killed_run(options, tmp_path / "set", name, call)
    assert not (tmp_path / "set").exists()
    found = {
        kind: len(list((tmp_path / "set.building").glob(f"{kind}/*.json"))) for kind in ("runs", "merged", "shards")
    }
    done = {"unit": 0, "runs": 0, "merged": 0, "shards": 0}
    steps_of = {"unit": "encode_unit", "runs": "write_run", "merged": "merge_runs", "shards": "assemble_shard"}
    for kind, function in steps_of.items():
        real = getattr(steps, function)

        def counted(*values, real=real, kind=kind):
            done[kind] += 1
            return real(*values)

        monkeypatch.setattr(steps, function, counted)
    said = run(options, tmp_path / "set")
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")
    assert done["unit"] == UNITS - units
    assert done["shards"] + found["shards"] == len(list((tmp_path / "set").rglob("*.bin"))) >= 4
    assert (done["runs"] + found["runs"], done["merged"] + found["merged"]) == (UNITS, 4)
    assert (f"continues: {units} of {UNITS} units are done" in said) == (units > 0)
    assert not (tmp_path / "set.building").exists()


def test_a_kill_between_the_name_and_the_clearing_leaves_a_whole_set(tmp_path, options):
    run(options, tmp_path / "whole/set")
    killed_run(options, tmp_path / "set", "finish.clear", 1)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")
    with pytest.raises(DataError, match="already holds a data set"):
        run(options, tmp_path / "set")
    run(options, tmp_path / "set", overwrite=True)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")
    assert not (tmp_path / "set.building").exists()


def test_other_inputs_or_options_begin_anew(tmp_path, options):
    killed_run(options, tmp_path / "set", "build.mark_duplicates", 1)
    with open(options["inputs"][0], "a") as file:  # type: ignore[index]
        file.write('{"text": "one more"}\n')
    run(options, tmp_path / "whole/set")
    said = run(options, tmp_path / "set")
    assert any("begins anew" in line for line in said) and not any("continues" in line for line in said)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")


def test_an_input_that_was_edited_at_equal_size_is_encoded_anew(tmp_path, options):
    killed_run(options, tmp_path / "set", "build.mark_duplicates", 1)
    path = Path(options["inputs"][0])  # type: ignore[index]
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"000", b"999"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    run(options, tmp_path / "whole/set")
    said = run(options, tmp_path / "set")
    assert before.st_size == path.stat().st_size and any("begins anew" in line for line in said)
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")


@pytest.mark.parametrize("given", [".", "**/*", "linked"])
def test_an_output_among_the_inputs_is_not_read(tmp_path, options, monkeypatch, given):
    texts = tmp_path / "texts"
    (texts / "sub").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(texts)
    monkeypatch.chdir(texts)
    lines = Path(write_jsonl(texts / "sub/b.jsonl", [f"text {k}" for k in range(40)]))
    good = lines.read_bytes()
    lines.write_bytes(good + b"{broken\n")
    inside = options | {"inputs": (str(tmp_path / given) if given == "linked" else given,), "unit_bytes": 100}
    with pytest.raises(DataError, match=r"b\.jsonl:41: not valid JSON"):
        run(inside, Path("sub/tokens"))
    assert list((texts / "sub/tokens.building/units").glob("*.json"))
    lines.write_bytes(good + b"\n" * 8)
    run(inside, Path("sub/tokens"))
    shutil.copytree("sub/tokens", "sub/tokens.old")
    run(inside, Path("sub/tokens"), overwrite=True)
    [source] = read_manifest(texts / "sub/tokens").sources
    assert sum(source.documents.values()) == 40 and source.input_bytes == lines.stat().st_size


def test_whatever_decides_about_ids_makes_other_units(options):
    def digest(tokenizer: str = "a", **changes: object) -> str:
        return make_plan(PrepareOptions(output="set", **options | changes), tokenizer).ids_digest  # type: ignore[arg-type]

    changes: list[dict[str, object]] = [
        {"add_bos": True}, {"eod_token": "<x>"}, {"tokenizer_backend": "auto"}, {"read": ReadOptions(text_field="b")}
    ]  # fmt: skip
    assert len({digest(), digest("b"), *(digest(**one) for one in changes)}) == 2 + len(changes)
    assert digest(shard_tokens=9, deduplicate=False) == digest()


def test_other_shards_of_the_same_units_keep_them(tmp_path, options):
    killed_run(options, tmp_path / "set", "assemble.write_whole", 3)
    other = {"shard_tokens": 400, "deduplicate": False, "validation_fraction": 0.1}
    run(options, tmp_path / "whole/set", **other)
    said = run(options, tmp_path / "set", **other)
    assert f"continues: {UNITS} of {UNITS} units are done" in said
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")


def test_a_unit_that_a_crash_cut_short_is_done_again(tmp_path, options):
    killed_run(options, tmp_path / "set", "build.mark_duplicates", 1)
    unit = tmp_path / "set.building/units/4.ids"
    unit.write_bytes(unit.read_bytes()[:-2])
    run(options, tmp_path / "whole/set")
    assert f"continues: {UNITS - 1} of {UNITS} units are done" in run(options, tmp_path / "set")
    assert files_of(tmp_path / "set") == files_of(tmp_path / "whole/set")


def test_a_build_at_work_is_left_alone(tmp_path, options):
    plan = steps.make_plan(PrepareOptions(output="", **options), "")  # type: ignore[arg-type]
    place = steps.Place(tmp_path / "set")
    with place.lead(plan), pytest.raises(DataError, match="another build is writing here"):
        run(options, tmp_path / "set")
    place.announce(plan)
    # Nor is it replaced under the hands of a builder that does not lead.
    with place.join(1), pytest.raises(DataError, match="another build is writing here"):
        run(options, tmp_path / "set")
    # Neither by what merges or imports, nor the other way round.
    with place.join(1), pytest.raises(DataError, match="another build is writing here"):
        Building(tmp_path / "set")
    with Building(tmp_path / "set"), pytest.raises(DataError, match="another build is writing here"):
        run(options, tmp_path / "set")


def test_a_bad_record_at_last_costs_nothing_with_skip(tmp_path, options):
    path = Path(options["inputs"][0])  # type: ignore[index]
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with pytest.raises(DataError, match=rf"{path}:101: not valid JSON"):
        run(options, tmp_path / "set")
    said = run(options, tmp_path / "set", on_error="skip")
    assert any(line.startswith("continues: ") for line in said)
    assert any(line.startswith(f"skipped {path}:101: not valid JSON") for line in said)


def test_a_full_disk_is_said_before_and_during_the_work(tmp_path, options, monkeypatch):
    monkeypatch.setattr(steps.Place, "free_bytes", lambda place: 10)
    with pytest.raises(DataError, match=r"set\.building: no space: some .* are needed .* and 10 B are free"):
        run(options, tmp_path / "set")
    monkeypatch.undo()

    def full(*values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(steps, "assemble_shard", full)
    with pytest.raises(DataError, match=r"set\.building: no space: some .* the same command again"):
        run(options, tmp_path / "set")
    monkeypatch.undo()
    assert f"continues: {UNITS} of {UNITS} units are done" in run(options, tmp_path / "set")


SLOW = """
import sys
from pathlib import Path
from tests.data_pipeline.kit import build
if __name__ == "__main__":
    build(sys.argv[1], output=Path(sys.argv[2]), tokenizer=Path(sys.argv[3]), processes=2, unit_bytes=1_000_000,
          tokenizer_backend="reference")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_build_leaves_no_process_and_goes_on(tmp_path, how):
    byte = byte_tokenizer(tmp_path / "byte")
    path = write_jsonl(tmp_path / "a.jsonl", ["some text " * 20_000] * 160)
    script = tmp_path / "script.py"
    script.write_text(SLOW)
    command = [sys.executable, str(script), path, str(tmp_path / "out/set"), str(byte)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    units = tmp_path / "out/set.building/units"
    wait_until(lambda: len(list(units.glob("*.json"))) >= 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(how)
    assert process.wait(120) != 0
    assert len(children) >= 2
    wait_until(lambda: not any(is_running(child) for child in children))
    assert not (tmp_path / "out/set").exists()
    before = len(list(units.glob("*.json")))
    assert subprocess.run(command, env=environment, stderr=subprocess.DEVNULL).returncode == 0
    assert before >= 2 and [entry.name for entry in (tmp_path / "out").iterdir()] == ["set"]
    size = sum(file.stat().st_size for file in (tmp_path / "out/set/train").glob("*.bin"))
    assert size == 2 * 160 * 200_001

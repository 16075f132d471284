"""Each check of a host finds the fault that is planted, and finds none without."""

import json
import resource
from collections import namedtuple

import pytest
import torch

from launch.megaxf import main
from megaxf.doctor import machine, software

GIB = 2**30


def only(checks, name):
    (found,) = [check for check in checks if check.name == name]
    return found


def test_versions_are_compared_with_the_metadata(monkeypatch):
    assert [check.verdict for check in software.packages()] == ["good"]
    wanted = ["torch>=99", "numpy>=1; python_version < '3'", "nowhere-at-all>=2", "rich"]
    monkeypatch.setattr(software, "requires", lambda name: wanted)
    faults = {check.name: check for check in software.packages()}
    assert faults["torch"].verdict == faults["nowhere-at-all"].verdict == "bad"
    # What a wheel was built for is part of the version that torch tells, not always of that which it is installed by.
    assert faults["torch"].found in (torch.__version__, torch.__version__.partition("+")[0])
    assert faults["torch"].advice == 'pip install "torch>=99"'
    assert faults["nowhere-at-all"].found == "missing"
    assert faults["packages"].found.startswith("rich ") and set(faults) == {"torch", "nowhere-at-all", "packages"}


def test_a_missing_compiler_is_noted(monkeypatch):
    monkeypatch.setattr(software.shutil, "which", lambda name: "/bin/g++" if name == "g++" else None)
    assert only(software.software(), "compiler") == ("compiler", "/bin/g++", "good", "")
    monkeypatch.setattr(software.shutil, "which", lambda name: None)
    assert only(software.software(), "compiler").verdict == "note"


def test_limits(monkeypatch):
    limits = {
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_MEMLOCK: (65536, 65536),
        resource.RLIMIT_FSIZE: (10**9, 10**9),
    }
    monkeypatch.setattr(machine.resource, "getrlimit", limits.get)
    found = list(machine.limits())
    assert only(found, "open files") == (
        "open files", "1,024", "note", "ulimit -n 65536 (the system allows 4,096)"
    )  # fmt: skip
    assert only(found, "file size").verdict == "bad"
    assert only(found, "locked memory").verdict == "good"  # without a GPU nothing is pinned
    for number in limits:
        limits[number] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert {check.verdict for check in machine.limits()} == {"good"}


@pytest.mark.parametrize(("size", "verdict"), [(64 * 2**20, "note"), (2 * GIB, "good")])
def test_the_shared_memory_of_a_container(monkeypatch, size, verdict):
    usage = namedtuple("Usage", "total used free")(size, 0, size)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
    assert machine.shared_memory().verdict == verdict


def test_a_slow_and_an_unwritable_disk(monkeypatch, tmp_path):
    assert only(machine.disk(tmp_path / "not/yet"), "disk room").found.endswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine, "write_speed", lambda folder, size: 1e6)
    assert only(machine.disk(tmp_path), "disk speed")[1:3] == ("1 MB/s written through", "note")

    def refuse(folder, size):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine, "write_speed", refuse)
    assert only(machine.disk(tmp_path), "disk speed").verdict == "bad"


def test_a_file_in_the_place_of_the_run_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        assert list(machine.disk(path)) == [
            ("disk room", f"{tmp_path / 'file'} is a file", "bad", "choose another run_folder")
        ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--tensor-parallel-size", "2"],
            "--tensor-parallel-size 2 does not divide the number of processes, 1; start 2",
        ),
        (["--context-parallel-size", "0"], "--context-parallel-size 0 should be 1 or more"),
        (["--pipeline-parallel-size", "-1"], "--pipeline-parallel-size -1 should be 1 or more"),
        (["--gpu", "nosuch"], "--gpu 'nosuch' is not in the hardware table"),
    ],
)
def test_faults_are_told_before_ranks_meet(monkeypatch, capsys, words, sentence):
    monkeypatch.setattr("launch.rendezvous.connect", None)
    assert main(["doctor", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_the_speed_is_that_of_the_clock(monkeypatch, tmp_path):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    assert machine.write_speed(tmp_path, 3 * 2**20) == 3 * 2**20 / 2


def test_the_command_tells_by_its_exit_code(monkeypatch, tmp_path, capsys):
    assert main(["doctor", "--run-folder", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (checks,) = said["hosts"].values()
    assert {"python", "packages", "memory", "disk speed"} <= {check["name"] for check in checks}
    assert said["measured"] is None
    monkeypatch.setattr(software, "requires", lambda name: ["nowhere-at-all>=2"])
    assert main(["doctor", "--run-folder", str(tmp_path)]) == 1
    assert "1 bad" in capsys.readouterr().out

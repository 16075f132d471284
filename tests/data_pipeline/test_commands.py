"""`megaxf prepare` and `megaxf data inspect` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.megaxf import main
from tests.data_pipeline.kit import byte_tokenizer, write_jsonl


@pytest.fixture
def request_line(tmp_path) -> list[str]:
    texts = [f"document {k}" for k in range(40)] + [""]
    tokenizer = byte_tokenizer(tmp_path / "tokenizer")
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    return ["prepare", path, "--tokenizer", str(tokenizer), "--output", str(tmp_path / "set"), "--processes", "1"]


def test_paths_that_cannot_be_used_are_named(request_line, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main([*request_line[:-3], str(tmp_path / "file/x"), "--processes", "1"]) == 2
    assert f"{tmp_path}/file/x.building: cannot be used: Not a directory\n" in capsys.readouterr().err
    assert main([*request_line, "--validation-fraction", "0"]) == 0
    for verb in (
        ["merge", str(tmp_path / "set"), str(tmp_path / "set")],
        ["reshard", str(tmp_path / "set"), "--shard-tokens", "9"],
    ):
        assert main(["data", *verb, "--output", str(tmp_path / "file/x")]) == 2
        assert "cannot be used: Not a directory\n" in capsys.readouterr().err


def test_no_processes_are_not_all_cores(request_line, capsys):
    assert main([*request_line[:-1], "0"]) == 2
    assert "--processes 0 is not at least 1" in capsys.readouterr().err


def test_prepare_prints_a_summary(request_line, capsys, tmp_path):
    assert main([*request_line, "--validation-fraction", "0.2", "--name", "small"]) == 0
    out = capsys.readouterr().out
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["name"] == "small" and "small" in out
    for word in ("train", "validation", "bytes/token", "a.jsonl", f"{manifest['splits']['train']['tokens']:,}"):
        assert word in out


def test_json_is_all_there_is_on_standard_output(request_line, capsys):
    assert main([*request_line, "--validation-fraction", "0.2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    splits = summary["splits"]
    assert sum(split["documents"] for split in splits.values()) == 40
    # 30 documents of 11 bytes and 10 of 10, each with its end.
    assert sum(split["tokens"] for split in splits.values()) == 30 * 12 + 10 * 11
    assert summary["sources"][0]["empties"] == 1
    assert (summary["vocab_size"], summary["dtype"]) == (257, "uint16")


def test_faults_are_messages_with_an_exit_code(request_line, capsys, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "cut')
    assert main([*request_line, "--validation-fraction", "0"]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/a.jsonl:2: not valid JSON" in error and "Traceback" not in error
    assert main([*request_line, "--validation-fraction", "0", "--on-error", "skip"]) == 0
    captured = capsys.readouterr()
    assert "left out of a.jsonl: 1 x not valid JSON" in captured.out
    assert f"skipped {tmp_path}/a.jsonl:2: not valid JSON" in captured.err
    assert main([*request_line, "--validation-fraction", "0"]) == 2
    assert "use --overwrite" in capsys.readouterr().err


def test_a_tokenizer_is_trained_on_request(tmp_path, capsys):
    (tmp_path / "code").mkdir()
    for k in range(30):
        (tmp_path / f"code/{k}.py").write_text(f"def function_{k}(x):\n    return x + {k}\n" * 20)
    options = ["--train-tokenizer", "bpe", "--vocab-size", "320", "--validation-fraction", "0.2", "--processes", "1"]
    assert main(["prepare", str(tmp_path / "code"), *options, "--output", str(tmp_path / "set"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["vocab_size"], summary["tokenizer"]["kind"]) == (320, "sentencepiece")
    assert (tmp_path / "set/tokenizer/tokenizer.model").is_file()


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    page = capsys.readouterr().out
    for word in ("examples:", "*.jsonl", "--train-tokenizer", "--include '*.py'", "save_to_disk"):
        assert word in page


def test_inspect_shows_and_verifies(request_line, capsys, tmp_path):
    main([*request_line, "--validation-fraction", "0.2"])
    folder = str(tmp_path / "set")
    capsys.readouterr()
    assert main(["data", "inspect", folder]) == 0
    assert "sizes agree with the manifest" in capsys.readouterr().out
    assert main(["data", "verify", folder, "--json"]) == 0
    sizes = [path.stat().st_size for path in Path(folder).rglob("shard-*")]
    assert json.loads(capsys.readouterr().out)["verified_bytes"] == sum(sizes)
    shard = Path(folder) / "train/shard-00000.bin"
    shard.write_bytes(b"\x07" + shard.read_bytes()[1:])
    assert main(["data", "inspect", folder]) == 0
    assert main(["data", "verify", folder]) == 2
    assert f"{shard}: MiB 0 (bytes 0 to" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path)]) == 2
    assert f"{tmp_path}: " in capsys.readouterr().err

"""The verbs of `megaxf data` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.format.writer import write_documents
from launch.megaxf import main, verbs
from tests.data_pipeline.kit import EOD, byte_tokenizer, files_of, texts_in

TEXTS = [b"one", b"two and", b"3"]


@pytest.fixture
def folder(tmp_path) -> str:
    splits = {"train": [list(text) for text in TEXTS], "validation": [[1]]}
    write_documents(tmp_path / "set", splits, vocab_size=257, eod_id=EOD, shard_tokens=8)
    return str(tmp_path / "set")


@pytest.mark.parametrize(
    "verb", ["batch", "coverage", "export", "import", "inspect", "merge", "pack", "reshard", "verify"]
)
def test_help_is_light_and_has_examples(verb):
    assert verb in verbs("data")
    code = (
        f"import sys; from launch.megaxf import main\ntry: main(['data', '{verb}', '--help'])\n"
        "except SystemExit: pass\nsys.exit(' '.join({'torch', 'numpy', 'pyarrow', 'rich'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"examples:\n  megaxf data {verb} " in done.stdout


def test_inspect_compares_sizes(folder, capsys):
    assert main(["data", "inspect", folder]) == 0
    assert "sizes agree with the manifest" in capsys.readouterr().out
    assert main(["data", "inspect", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["documents"] == 3
    Path(folder, "train/shard-00000.len").unlink()
    assert main(["data", "inspect", folder]) == 2
    assert "shard-00000.len: is missing" in capsys.readouterr().err


def test_verify_says_all_and_tells_by_its_exit_code(folder, capsys):
    assert main(["data", "verify", folder]) == 0
    assert "every hash agrees" in capsys.readouterr().out
    damaged = [Path(folder, f"train/shard-0000{k}.bin") for k in (0, 1)]
    for path in damaged:
        path.write_bytes(b"\x00\x01" + path.read_bytes()[2:])
    assert main(["data", "verify", folder]) == 2
    error = capsys.readouterr().err
    assert all(f"{path}: MiB 0 (bytes 0 to" in error for path in damaged)
    assert main(["data", "verify", folder, "--json"]) == 2
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [fault["path"] for fault in faults] == [str(path) for path in damaged]


def test_merge_and_reshard(folder, capsys, tmp_path):
    assert main(["data", "merge", folder, folder, "--output", str(tmp_path / "both"), "--name", "pair"]) == 0
    assert "pair" in capsys.readouterr().out
    assert texts_in(tmp_path / "both") == TEXTS * 2
    words = ["data", "reshard", str(tmp_path / "both"), "--shard-tokens", "100", "--output", str(tmp_path / "large")]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["shards"] == 1
    assert texts_in(tmp_path / "large") == TEXTS * 2
    assert main(words) == 2
    assert "use --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_export_and_import(folder, capsys, tmp_path):
    assert main(["data", "export", folder, "--output", str(tmp_path / "megatron")]) == 0
    assert "train: 3 pairs of .bin and .idx" in capsys.readouterr().out
    tokenizer = str(byte_tokenizer(tmp_path / "tokenizer"))
    words = ["data", "import", str(tmp_path / "megatron/train"), "--validation", str(tmp_path / "megatron/validation")]
    output = ["--tokenizer", tokenizer, "--shard-tokens", "8", "--output", str(tmp_path / "back")]
    assert main([*words, *output, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["imported"] == ["megatron"]
    tokens = {name: data for name, data in files_of(tmp_path / "set").items() if name.endswith((".bin", ".len"))}
    assert tokens.items() <= files_of(tmp_path / "back").items() and len(tokens) == 8
    assert main(["data", "export", folder, "--output", str(tmp_path / "megatron")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_faults_of_an_import_are_messages(capsys, tmp_path):
    np.asarray([1, 2, EOD], "uint16").tofile(tmp_path / "train.bin")
    tokenizer = str(byte_tokenizer(tmp_path / "tokenizer"))
    words = ["data", "import", str(tmp_path / "train.bin"), "--tokenizer", tokenizer, "--output", str(tmp_path / "set")]
    for extra, said in (
        ([], "say which with --format arrays|datatrove|mds|megatron"),
        (["--format", "arrays"], "use --dtype"),
        (["--format", "arrays", "--dtype", "float32"], "has ids of type float32"),
        (["--format", "arrays", "--dtype", "uint32"], "has 6 bytes, no whole number of uint32"),
        (["--shard-tokens", "0"], "--shard-tokens 0 is not at least 1"),
        (["--eod-token", "absent"], "has no token 'absent'"),
    ):
        assert main([*words, *extra]) == 2
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error
    assert not (tmp_path / "set").exists()
    assert main([*words, "--format", "arrays", "--dtype", "uint16"]) == 0

"""The whole of `prepare`, with a byte tokenizer: every count can be worked out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.verify import verify
from data_pipeline.prepare.build import PrepareOptions, prepare
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.sources.base import ReadOptions
from data_pipeline.tokenizer.base import load_tokenizer
from tests.data_pipeline.kit import (
    EOD,
    build,
    byte_tokenizer,
    files_of,
    texts_in,
    texts_of,
    word_tokenizer,
    write_jsonl,
)
from tests.data_pipeline.test_tokenizer import bos_tokenizer

LABELLED = [f"{k:03d}" * (k % 7 + 1) for k in range(100)]


@pytest.fixture(scope="module")
def byte(tmp_path_factory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("byte"))


def test_empty_documents_are_dropped_and_counted(tmp_path, byte):
    path = write_jsonl(tmp_path / "a.jsonl", ["", "one", "", " \n", "two", ""])
    manifest = build(path, output=tmp_path / "set", tokenizer=byte)
    assert texts_in(tmp_path / "set") == [b"one", b"two"]
    [source] = manifest.sources
    assert (source.empties, source.documents, source.tokens) == (4, {"train": 2}, {"train": 8})


def test_nothing_but_empty_documents_is_an_error_that_leaves_nothing(tmp_path, byte):
    path = write_jsonl(tmp_path / "a.jsonl", [""] * 5)
    with pytest.raises(DataError, match=r"nothing to train on: .*a\.jsonl has any text \(5 empty, 0 faulty, 0 too"):
        build(path, output=tmp_path / "out/set", tokenizer=byte)
    assert not (tmp_path / "out/set").exists()
    options = PrepareOptions((path,), str(tmp_path / "out/set"), train_tokenizer="bpe", vocab_size=300)
    with pytest.raises(DataError, match="nothing to train on"):
        prepare(options, PrepareProgress(quiet=True))


def test_bad_lines_stop_with_their_place_or_are_counted(tmp_path, byte):
    lines = [json.dumps({"text": f"good {k}"}) for k in range(10)]
    lines[3] = lines[3][:-4]
    lines[6] = '{"title": "no text"}'
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([*lines, '{"text": "cut o']))
    with pytest.raises(DataError, match=rf"{path}:4: not valid JSON; .*--on-error skip"):
        build(str(path), output=tmp_path / "set", tokenizer=byte)
    assert not (tmp_path / "set").exists()
    manifest = build(str(path), output=tmp_path / "set", tokenizer=byte, on_error="skip")
    assert manifest.sources[0].errors == {"no field 'text'": 1, "not valid JSON": 2}
    assert texts_in(tmp_path / "set") == [f"good {k}".encode() for k in (0, 1, 2, 4, 5, 7, 8, 9)]


def test_text_cannot_forge_the_end_of_a_document(tmp_path, byte):
    texts = ["a<|endoftext|>b", "<|endoftext|>"]
    build(write_jsonl(tmp_path / "a.jsonl", texts), output=tmp_path / "set", tokenizer=byte)
    assert texts_in(tmp_path / "set") == [text.encode() for text in texts]
    words = word_tokenizer(tmp_path / "words", 10, added=[])
    path = write_jsonl(tmp_path / "b.jsonl", ["t1 t2", "t3 t9 t4", "t5"])
    # A tokenizer that would end documents with an ordinary word cannot be kept from finding it in a text.
    with pytest.raises(DataError, match=r"b\.jsonl:2: the text encodes to the end-of-document token"):
        build(path, output=tmp_path / "w", tokenizer=words, eod_token="t9")
    manifest = build(path, output=tmp_path / "w", tokenizer=words, eod_token="t9", on_error="skip")
    assert manifest.sources[0].errors == {"the text encodes to the end-of-document token": 1}
    assert open_dataset(tmp_path / "w", "train").documents == 2 and verify(tmp_path / "w")


@pytest.mark.parametrize(("add_bos", "specials"), [(False, 4), (True, 8)])
def test_marks_stand_at_the_edges_only(tmp_path, add_bos, specials):
    tokenizer = bos_tokenizer(tmp_path / "tokenizer")
    path = write_jsonl(tmp_path / "a.jsonl", ["<s>one</s>", "two", "three", "x" * 1_000_000])
    build(path, output=tmp_path / "set", tokenizer=tokenizer, add_bos=add_bos)
    dataset = open_dataset(tmp_path / "set", "train")
    tokens = dataset.read(0, dataset.tokens)
    assert ((tokens == 256) | (tokens == 257)).sum() == specials
    for index in range(4):
        document = dataset.document(index)
        assert document[-1] == 257 and (document[0] == 256) == add_bos
    assert load_tokenizer(tmp_path / "set/tokenizer").decode(dataset.document(0).tolist()) == "<s>one</s>"


def test_train_and_validation_share_nothing(tmp_path, byte):
    twice = LABELLED + LABELLED[::3]
    manifest = build(
        write_jsonl(tmp_path / "a.jsonl", twice), output=tmp_path / "set", tokenizer=byte, validation_fraction=0.1
    )
    train, validation = (set(texts_in(tmp_path / "set", split)) for split in ("train", "validation"))
    assert train | validation == {text.encode() for text in LABELLED}
    assert not train & validation and 3 <= len(validation) <= 20
    assert sum(manifest.sources[0].documents.values()) == len(twice)


def test_more_validation_is_a_superset_of_less(tmp_path, byte):
    path = write_jsonl(tmp_path / "a.jsonl", LABELLED)
    for name, fraction in (("less", 0.1), ("more", 0.3)):
        build(path, output=tmp_path / name, tokenizer=byte, validation_fraction=fraction)
    less, more = (set(texts_in(tmp_path / name, "validation")) for name in ("less", "more"))
    assert less < more


def test_an_empty_split_is_an_error(tmp_path, byte):
    path = write_jsonl(tmp_path / "a.jsonl", ["only one"])
    with pytest.raises(DataError, match="none of the 1 documents fell into the validation split"):
        build(path, output=tmp_path / "set", tokenizer=byte, validation_fraction=0.01)
    assert not (tmp_path / "set").exists()


def test_every_kind_of_input_gives_the_same_shards(tmp_path, byte):
    import datasets

    texts = [f"document {k} 😀\r\n" + "\u2028text\t" * k for k in range(200)]
    (tmp_path / "folder").mkdir()
    for k, text in enumerate(texts):
        (tmp_path / f"folder/{k:04d}.txt").write_bytes(text.encode())
    plain = Path(write_jsonl(tmp_path / "a.jsonl", texts))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "c.parquet", row_group_size=9)
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "d"))
    built, digests = {}, set()
    for name in ("folder", "a.jsonl", "b.jsonl.zst", "c.parquet", "d"):
        output = tmp_path / "sets" / name
        manifest = build(
            str(tmp_path / name), output=output, tokenizer=byte, validation_fraction=0.2, shard_tokens=5000
        )
        content = (".bin", ".len", ".xxh")
        built[name] = {file: data for file, data in files_of(output).items() if file.endswith(content)}
        digests.add(manifest.sources[0].digest)
    assert len(built["folder"]) > 20 and len(digests) == 1
    assert all(files == built["folder"] for files in built.values())


def test_the_number_of_processes_changes_no_byte(tmp_path, byte):
    """Real text and a tokenizer trained on it; faults on the way."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("[a-h]*.py"))]
    good = write_jsonl(tmp_path / "a.jsonl", texts)
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(b'{"text": "x\\ud83dy"}\n{"text": "x\xffy"}\n{"text": "fine"}\n')
    for processes in (1, 2, 4):
        options = PrepareOptions(
            (good, str(bad)),
            str(tmp_path / f"{processes}/set"),
            train_tokenizer="bpe",
            vocab_size=500,
            tokenizer_sample_bytes=500_000,
            validation_fraction=0.1,
            on_error="skip",
            shard_tokens=100_000,
            processes=processes,
        )
        prepare(options, PrepareProgress(quiet=True))
    one, two, four = (files_of(tmp_path / f"{processes}/set") for processes in (1, 2, 4))
    assert one == two == four and len(one) > 10
    assert verify(tmp_path / "4/set")
    with pytest.raises(DataError, match=rf"{bad}:1: half a surrogate pair"):
        build(good, str(bad), output=tmp_path / "x", tokenizer=tmp_path / "1/set/tokenizer", processes=2)
    # What a very long document gives is what its text gives, undivided.
    long = "".join(texts)[:800_000] + "😀"
    build(write_jsonl(tmp_path / "c.jsonl", [long]), output=tmp_path / "y", tokenizer=tmp_path / "1/set/tokenizer")
    tokenizer = load_tokenizer(tmp_path / "1/set/tokenizer")
    ids = open_dataset(tmp_path / "y", "train").document(0).tolist()
    assert ids == [*tokenizer.encode(long), tokenizer.eod_id] and tokenizer.decode(ids) == long


def test_ids_beyond_two_bytes(tmp_path):
    tokenizer = word_tokenizer(tmp_path / "wide", 80_000)
    path = write_jsonl(tmp_path / "a.jsonl", ["t65535 t65536 t79999"])
    manifest = build(path, output=tmp_path / "set", tokenizer=tokenizer)
    assert open_dataset(tmp_path / "set", "train").document(0).tolist() == [65_535, 65_536, 79_999, 80_000]
    assert (manifest.dtype, manifest.vocab_size, manifest.largest_id) == ("uint32", 80_001, 80_000)


def test_several_inputs_are_counted_apart(tmp_path, byte):
    a = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    b = write_jsonl(tmp_path / "b.jsonl", ["three", ""])
    manifest = build(a, b, output=tmp_path / "set", tokenizer=byte, name="mine")
    counts = [
        (source.name, source.documents["train"], source.tokens["train"], source.empties) for source in manifest.sources
    ]
    assert counts == [("a.jsonl", 2, 8, 0), ("b.jsonl", 1, 6, 1)]
    assert manifest.name == "mine"
    assert (manifest.splits["train"].text_bytes, manifest.splits["train"].longest) == (11, 6)
    assert texts_in(tmp_path / "set") == [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": None}, "give one of --tokenizer PATH and --train-tokenizer"),
        ({"train_tokenizer": "bpe"}, "give one of"),
        ({"vocab_size": 300}, "--train-tokenizer and --vocab-size go together"),
        ({"validation_fraction": 1.5}, r"--validation-fraction 1.5 is not in \[0, 1\)"),
        ({"processes": 0}, "--processes 0 is not at least 1"),
        ({"tokenizer_sample_bytes": 9}, "--tokenizer-sample-bytes has an effect with --train-tokenizer only"),
        ({"read": ReadOptions(min_characters=-5)}, "--min-characters -5 is not at least 0"),
        ({"read": ReadOptions(max_characters=0)}, "--max-characters 0 is not at least 1"),
        ({"read": ReadOptions(min_characters=100, max_characters=5)}, "--max-characters 5 is not at least 100"),
        ({"read": ReadOptions(split="a", config="b")}, "--split a has no effect: .*\n--config b has no effect: "),
        ({"read": ReadOptions(include=("*.py",))}, "--include has no effect: no input is a folder that is there"),
        ({"read": ReadOptions(exclude=("*.py",))}, "--exclude has no effect: no input is a folder that is there"),
        ({"add_bos": True}, "has no beginning-of-sequence token"),
    ],
)
def test_a_wrong_request_is_refused_before_work(tmp_path, byte, changes, said):
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(DataError, match=said):
        build(path, output=tmp_path / "out/set", **{"tokenizer": byte, **changes})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_names_of_files_need_not_be_utf8(tmp_path, byte, processes):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for name, data in ((b"\xff.txt", b"one"), (b"\xfe.jsonl", b'{"text": "two"}\n{}\n'), (b"\xfd.txt", b"\xff")):
        (folder / os.fsdecode(name)).write_bytes(data)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["three"]}), tmp_path / "c.parquet")
    (tmp_path / "c.parquet").rename(folder / os.fsdecode(b"\xfc.parquet"))
    output = tmp_path / os.fsdecode(b"s\xe9t")
    manifest = build(
        str(folder), output=output, tokenizer=byte, on_error="skip", processes=processes,
        read=ReadOptions(exclude=(os.fsdecode(b"\xfb*"),)),
    )  # fmt: skip
    assert (manifest.name, manifest.sources[0].name) == ("s\\xe9t", "caf\\xe9")
    assert manifest.settings["exclude"] == ["\\xfb*"]
    dataset = open_dataset(output, "train")
    assert sorted(texts_of(dataset)) == [b"one", b"three", b"two"]
    origins = {Path(dataset.origin(index)[0]).name for index in range(3)}
    assert origins == {"\\xff.txt", "\\xfe.jsonl", "\\xfc.parquet"}
    errors = [json.loads(line) for line in (output / "errors.jsonl").read_text().splitlines()]
    assert {Path(error["file"]).name for error in errors} == {"\\xfe.jsonl", "\\xfd.txt"}
    with pytest.raises(DataError, match=r"caf\\xe9/\\xf[de]\.\w+(:2)?: (not valid UTF-8|no field)"):
        build(str(folder), output=tmp_path / "other", tokenizer=byte, processes=processes)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_end_of_document_is_the_last_token(byte, tmp_path):
    build(write_jsonl(tmp_path / "a.jsonl", ["x"]), output=tmp_path / "set", tokenizer=byte)
    assert open_dataset(tmp_path / "set", "train").document(0).tolist() == [ord("x"), EOD]


MEASURED = """
import resource, sys
from pathlib import Path
from tests.data_pipeline.kit import build
build(sys.argv[1], output=Path(sys.argv[2]), tokenizer=Path(sys.argv[3]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_documents(tmp_path, byte):
    peaks = []
    for count in (200_000, 2_000_000):
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(b'{"text":"x"}\n' * count)
        command = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / f"set{count}"), str(byte)]
        peaks.append(
            int(subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, check=True).stdout)
        )
    assert peaks[1] - peaks[0] < 180e6

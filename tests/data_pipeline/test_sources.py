"""Every kind of input gives the same documents, and names what it cannot read."""

from __future__ import annotations

import gzip
import os
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from data_pipeline.errors import DataError
from data_pipeline.sources import jsonl, parquet
from data_pipeline.sources import text as text_files
from data_pipeline.sources.base import NOT_TEXT, NOT_UTF8, UNREADABLE, Fault, ReadOptions, Unit, place
from data_pipeline.sources.find import find_units, without_effect
from tests.data_pipeline.kit import write_jsonl

TEXTS = [f"document {k}\n" + "text " * k for k in range(50)]


class Record(NamedTuple):
    place: str
    text: str
    fault: str = ""


def units_of(name: str | Path, unit_bytes: int = 1 << 26, **options) -> list[Unit]:
    [units] = find_units([str(name)], ReadOptions(**options), unit_bytes)
    return units


def read(name: str | Path, unit_bytes: int = 1 << 26, **options) -> list[Record]:
    """Every document and fault of an input, in order, with its place counted over the units of its file."""
    found = []
    for _, units in groupby(units_of(name, unit_bytes, **options), key=lambda unit: unit.file):
        first = 0
        for unit in units:
            size = 0
            for texts in unit.read():
                assert np.all(np.diff(texts.records) > 0)
                some = [(int(number), text, "") for number, text in zip(texts.records, texts.texts, strict=True)]
                some += [(fault.record, "", fault.reason) for fault in texts.faults]
                for number, text, fault in sorted(some):
                    path, line = place(unit, first, number)
                    found.append(Record(path if line is None else f"{path}:{line}", text, fault))
                size += texts.size
            assert size == unit.size
            first += unit.records
    return found


def texts(name: str | Path, **options) -> list[str]:
    records = read(name, **options)
    assert not [record for record in records if record.fault]
    return [record.text for record in records]


def write_compressed(path: Path, data: bytes) -> Path:
    # Two members, as `cat a.gz b.gz` makes them.
    pack = gzip.compress if path.suffix == ".gz" else zstandard.compress
    half = data.index(b"\n", len(data) // 2) + 1
    path.write_bytes(pack(data[:half]) + pack(data[half:]))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.json"])
def test_json_lines(tmp_path, name):
    data = Path(write_jsonl(tmp_path / "plain", TEXTS)).read_bytes()
    path = tmp_path / name
    if path.suffix in (".gz", ".zst"):
        write_compressed(path, data)
    else:
        path.write_bytes(data)
    records = read(path)
    assert [record.text for record in records] == TEXTS
    assert records[17].place == f"{path}:18"


@pytest.mark.parametrize("block", [16, 100, 1 << 20])
def test_blocks_are_whole_lines_whatever_their_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", block)
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    records = read(path)
    assert [record.text for record in records] == TEXTS
    assert [record.place for record in records] == [f"{path}:{k}" for k in range(1, 51)]


def test_lines_end_at_line_feeds_only(tmp_path):
    text = "a\u2028b\u2029c\u0085d"
    (tmp_path / "a.jsonl").write_bytes(('{"text": "' + text + '\\u000b\\u001ce"}\r\n\n').encode())
    assert texts(tmp_path / "a.jsonl") == [text + "\x0b\x1ce"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfb\r\n")
    assert texts(tmp_path / "a.jsonl") + texts(tmp_path / "b.txt") == ["a", "b\r\n"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (rb'{"text": "cut o', "not valid JSON"),
        (rb'{"title": "x"}', "no field 'text'"),
        (rb'["text"]', "no field 'text'"),
        (rb'{"text": null}', NOT_TEXT),
        (rb'{"text": 5}', NOT_TEXT),
        (rb'{"text": "x\ud83dy"}', "half a surrogate pair, which is no character"),
        (rb'{"text": "x\ude00y"}', "half a surrogate pair, which is no character"),
        (b'{"text": "x\xffy"}', NOT_UTF8),
    ],
)
def test_a_bad_line_is_named_and_its_neighbours_are_read(tmp_path, line, fault):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + line + b'\n{"text": "fine"}\n' + line)
    assert read(tmp_path / "a.jsonl") == [
        Record(f"{tmp_path}/a.jsonl:1", "good"),
        Record(f"{tmp_path}/a.jsonl:2", "", fault),
        Record(f"{tmp_path}/a.jsonl:3", "fine"),
        Record(f"{tmp_path}/a.jsonl:4", "", fault),
    ]


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_cut_compressed_file_is_named(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 1 << 16)
    path = tmp_path / f"a.jsonl.{ending}"
    data = Path(write_jsonl(tmp_path / "plain", TEXTS * 100)).read_bytes()
    write_compressed(path, data)
    path.write_bytes(path.read_bytes()[:-20])
    *records, last = read(path)
    assert "the compressed file is damaged" in last.fault and last.place.startswith(f"{path}:")
    assert records and [record.text for record in records] == (TEXTS * 100)[: len(records)]


@pytest.mark.parametrize(("ending", "lost"), [("gz", 200), ("zst", 150_000)])
def test_what_lies_before_a_damage_is_read(tmp_path, ending, lost):
    """In one block; of Zstandard the block of 128 KiB that is cut cannot be unpacked."""
    words = [np.random.default_rng(seed).bytes(50).hex() for seed in range(10_000)]
    pack = gzip.compress if ending == "gz" else zstandard.compress
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(pack(Path(write_jsonl(tmp_path / "plain", words)).read_bytes())[:-9])
    *records, last = read(path)
    assert [record.text for record in records] == words[: len(records)]
    assert last.place == f"{path}:{len(records) + 1}" and "this line and everything after it are lost" in last.fault
    assert len(words) * 113 - len(records) * 113 <= lost


def test_zeros_behind_gzip_are_no_damage_and_wrong_bytes_in_it_are(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    good = gzip.compress(Path(write_jsonl(tmp_path / "plain", TEXTS * 20)).read_bytes())
    path.write_bytes(good + b"\0" * 100)
    assert texts(path) == TEXTS * 20
    for wrong in range(len(good) // 2, len(good), 97):
        path.write_bytes(good[:wrong] + bytes([good[wrong] ^ 255]) + good[wrong + 1 :])
        assert "the compressed file is damaged" in read(path)[-1].fault


def write_parquet(path: Path, column: pyarrow.Array, **options) -> Path:
    table = pyarrow.table({"id": range(len(column)), "text": column})
    pyarrow.parquet.write_table(table, path, row_group_size=7, **options)
    return path


def test_parquet(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", pyarrow.array(TEXTS), compression="zstd")
    assert texts(path) == TEXTS
    assert read(path)[17].place == f"{path}:18"
    large = write_parquet(tmp_path / "b.parquet", pyarrow.array(TEXTS, pyarrow.large_string()))
    assert texts(large) == TEXTS
    with pytest.raises(DataError, match=r"no column 'body'; --text-field takes one of \['id', 'text'\]"):
        read(path, text_field="body")
    with pytest.raises(DataError, match="column 'id' holds int64, not text"):
        read(path, text_field="id")


def test_bad_rows_of_parquet_are_named(tmp_path):
    values = pyarrow.array([b"good", None, b"x\xffy", b"fine"], pyarrow.binary())
    path = write_parquet(tmp_path / "a.parquet", values)
    assert [(record.place[-2:], record.text, record.fault) for record in read(path)] == [
        (":1", "good", ""),
        (":2", "", NOT_TEXT),
        (":3", "", NOT_UTF8),
        (":4", "fine", ""),
    ]
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    [record] = read(path)
    assert "the Parquet file is damaged" in record.fault


@pytest.mark.parametrize("size", [300, 2000, 1 << 26])
def test_a_damaged_row_group_costs_its_own_rows(tmp_path, size):
    """Whatever the units, and rows behind it keep their numbers."""
    path = write_parquet(tmp_path / "a.parquet", pyarrow.array(TEXTS), compression="zstd", use_dictionary=False)
    start = pyarrow.parquet.ParquetFile(path).metadata.row_group(3).column(1).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * 30 + data[start + 30 :])
    found = read(path, size)
    assert [record.place for record in found] == [f"{path}:{row}" for row in range(1, 51)]
    assert [number for number, record in enumerate(found) if record.fault] == list(range(21, 28))
    assert {record.fault for record in found} == {"", "the Parquet file is damaged"}
    assert [record.text for record in found if not record.fault] == TEXTS[:21] + TEXTS[28:]


def test_a_saved_hugging_face_data_set(tmp_path):
    import datasets

    dataset = datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(50))})
    dataset.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": dataset, "test": dataset.select(range(3))}).save_to_disk(str(tmp_path / "many"))
    assert texts(tmp_path / "one") == texts(tmp_path / "many") == TEXTS
    assert texts(tmp_path / "many", split="test") == TEXTS[:3]
    with pytest.raises(DataError, match=r"no split 'dev'; --split takes one of \['test', 'train'\]"):
        read(tmp_path / "many", split="dev")
    with pytest.raises(DataError, match="no column 'body'"):
        read(tmp_path / "one", text_field="body")


@pytest.fixture
def tree(tmp_path) -> Path:
    names = [
        "b.py",
        "a.py",
        "sub/c.py",
        "sub/d.txt",
        "test/e.py",
        "sub/test/f.py",
        ".git/g.py",
        "h.bin",
        "z.jsonl",
        "__init__.py",
    ]
    for name in names:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"text": "z"}' if name == "z.jsonl" else name.encode())
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "__init__.py a.py b.py sub/c.py sub/d.txt sub/test/f.py test/e.py z"),
        ({"include": ("*.py",)}, "__init__.py a.py b.py sub/c.py sub/test/f.py test/e.py"),
        ({"include": ("*.py",), "exclude": ("test", "__*")}, "a.py b.py sub/c.py"),
        ({"include": ("sub/*",)}, "sub/c.py sub/d.txt sub/test/f.py"),
        ({"include": ("*.bin",)}, "h.bin"),
    ],
)
def test_folders_are_searched_in_one_order(tree, options, expected):
    assert texts(tree, **options) == expected.split()


def test_options_have_an_effect_where_one_input_asks_for_them(tree, tmp_path):
    import datasets

    datasets.DatasetDict({"a": datasets.Dataset.from_dict({"text": ["x"]})}).save_to_disk(str(tmp_path / "saved"))
    file, saved, hub = str(tree / "a.py"), str(tmp_path / "saved"), "someone/something"
    split, config, include = ReadOptions(split="a"), ReadOptions(config="b"), ReadOptions(include=("*",))
    for options, inputs in [
        (split, [file, str(tree), f"{tree}/*", "memory://bucket"]),
        (config, [file, str(tree), f"{tree}/*", "memory://bucket", saved]),
        (include, [file, saved, hub]),
    ]:
        assert len(without_effect(inputs, options)) == 1
    for options, name in [(split, saved), (split, hub), (config, hub)]:
        assert not without_effect([file, name], options)
    for name in (str(tree), f"{tree}/*", "memory://bucket"):
        assert not without_effect([file, name], include)
    assert not without_effect([hub], ReadOptions(split="a", config="b", streaming=True))


def test_a_text_file_that_is_not_utf8_is_named_with_its_line(tree):
    (tree / "b.py").write_bytes(b"fine\nfine\n caf\xe9\n")
    faults = [record for record in read(tree) if record.fault]
    assert faults == [Record(f"{tree}/b.py", "", NOT_UTF8)]
    [(_, _, detail)] = [fault for unit in units_of(tree) for texts in unit.read() for fault in texts.faults]
    assert detail == "line 3"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt"])
def test_a_file_that_may_not_be_read_is_a_fault(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes(b"something")
    units = units_of(path)

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    for module in (jsonl, parquet, text_files):
        monkeypatch.setattr(module, "open_file", refuse)
    [found] = units[0].read()
    assert found.faults == [Fault(0, UNREADABLE, "Permission denied")] and found.size == units[0].size


def test_a_folder_that_may_not_be_searched_is_not_passed_over(tree, monkeypatch):
    """As root everything may be read, so the answer of the system is made up."""
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"tree/sub: cannot be searched: Permission denied; .*--exclude"):
        read(tree)
    assert texts(tree, exclude=("sub",)) == ["__init__.py", "a.py", "b.py", "test/e.py", "z"]


def test_nothing_to_read_is_an_error(tree):
    with pytest.raises(DataError, match=r"tree: holds no files that match --include \*\.java"):
        read(tree, include=("*.java",))
    for name in ("nowhere.txt", "no where", "nowhere/", "~/nowhere", "./nowhere", "no/where/else", "нигде", "n" * 97):
        with pytest.raises(DataError, match=f"{name}: does not exist"):
            read(name)

"""Wherever an input is cut and however it is stored, the documents are the same."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from data_pipeline.errors import DataError
from data_pipeline.sources import arrow, base, huggingface, jsonl, parquet, text
from data_pipeline.sources.base import NOT_TEXT, NOT_UTF8, TOO_LONG, TOO_SHORT, ReadOptions
from data_pipeline.sources.find import find_units
from tests.data_pipeline.kit import write_jsonl
from tests.data_pipeline.test_sources import TEXTS, Record, read, texts, units_of


@pytest.fixture
def blocks(monkeypatch):
    """Sets the size of blocks for every kind of input."""

    def set_size(size: int) -> None:
        for module in (jsonl, parquet, huggingface, text):
            monkeypatch.setattr(module, "BLOCK_BYTES", size)
        monkeypatch.setattr(jsonl, "_TAIL_BYTES", max(1, size // 3))

    return set_size


def random_lines(draw: random.Random) -> bytes:
    """JSON lines of all lengths with all that may stand between and in them."""
    lines = []
    for number in range(draw.randrange(25)):
        text = draw.choice("aé中😀\u2028") * draw.choice([0, 1, 3, 10, 80]) + str(number)
        good = json.dumps({"text": text}, ensure_ascii=draw.random() < 0.5).encode()
        lines.append(
            draw.choice([good, good, good, good + b"\r", b"", b" \t\r", b'{"no": 1}', b"\xff", b'{"text": 4}'])
        )
    data = b"\n".join(lines) + draw.choice([b"", b"\n", b"\n\n"])
    return draw.choice([b"", b"\xef\xbb\xbf"]) + data


def expected_of(path: Path) -> list[Record]:
    """What the file holds, by the standard library alone."""
    found = []
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError:
            found.append(Record(f"{path}:{number}", "", NOT_UTF8))
            continue
        text, fault = value.get("text", ""), "" if "text" in value else "no field 'text'"
        found.append(Record(f"{path}:{number}", *((text, fault) if isinstance(text, str) else ("", NOT_TEXT))))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_ranges_of_any_size_give_the_lines_of_the_whole_file(tmp_path, blocks, seed):
    draw = random.Random(seed)
    path = tmp_path / "a.jsonl"
    path.write_bytes(random_lines(draw))
    blocks(draw.choice([1, 7, 64, 1 << 20]))
    size = draw.choice([3, 10, 30, 100, 1000, 1 << 20])
    assert read(path, size) == expected_of(path)
    found = units_of(path, size)
    assert len(found) == max(1, -(-path.stat().st_size // size)) and len({unit.key for unit in found}) == len(found)


def test_the_last_line_of_a_range_is_not_read_further_than_it_goes(tmp_path):
    """A range costs its own bytes, one line more, and little else."""
    path = Path(write_jsonl(tmp_path / "a.jsonl", ["x" * 100] * 20_000))
    size = path.stat().st_size // 10
    found = units_of(path, size)
    [taken] = found[3].read()
    assert abs(sum(map(len, taken.texts)) - size * 100 / 113) < 500


def test_a_line_that_fills_many_blocks_is_read_whole(tmp_path, blocks):
    blocks(1000)
    path = write_jsonl(tmp_path / "a.jsonl", ["a", "b" * 50_000, "c"])
    assert texts(path, unit_bytes=2000) == ["a", "b" * 50_000, "c"]


def write_everything(folder: Path) -> list[Path]:
    """The same documents in every kind of file."""
    import datasets

    folder.mkdir(exist_ok=True)
    data = Path(write_jsonl(folder / "a.jsonl", TEXTS)).read_bytes()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(data))
    (folder / "a.jsonl.zst").write_bytes(zstandard.compress(data))
    table = pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=7)
    datasets.Dataset.from_dict({"text": TEXTS, "id": list(range(len(TEXTS)))}).save_to_disk(str(folder / "a.saved"))
    return [folder / name for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.saved")]


@pytest.mark.parametrize("size", [50, 700, 1 << 26])
def test_every_kind_of_file_gives_the_same_documents(tmp_path, blocks, size):
    blocks(300)
    for path in write_everything(tmp_path / "all"):
        found = read(path, size)
        assert found == [Record(f"{path}:{line}", text) for line, text in enumerate(TEXTS, start=1)]
        if size == 50 and path.suffix not in (".gz", ".zst"):
            assert len(units_of(path, size)) > 5


def test_units_are_sent_to_other_processes_unopened(tmp_path):
    for path in write_everything(tmp_path / "all"):
        for unit in units_of(path, 500):
            sent = pickle.loads(pickle.dumps(unit))
            assert [t.texts for t in sent.read()] == [t.texts for t in unit.read()]
            assert (sent.key, sent.size, sent.records) == (unit.key, unit.size, unit.records)


def test_the_key_of_a_unit_follows_its_file(tmp_path):
    for path in write_everything(tmp_path / "all")[:4]:
        before = units_of(path)[0].key
        os.utime(path, (1, 1))
        assert units_of(path)[0].key == before
        with path.open("ab") as file:
            file.write(b"\n")
        assert units_of(path)[0].key != before


def test_the_version_of_a_unit_tells_contents_of_one_size_apart(tmp_path, memory):
    """Without it a stopped build would go on with the text that a file held before."""
    import datasets

    written = write_everything(tmp_path / "all")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    local = [*written[:4], tmp_path / "texts"]
    names = [*map(str, local), *(f"file://{path}" for path in local), f"{tmp_path}/all/*.jsonl"]
    before = {name: units_of(name)[0].version for name in names}
    assert before == {name: units_of(name)[0].version for name in names}
    for path in [*written[:4], tmp_path / "texts/a.txt"]:
        os.utime(path, (1, 1))
    assert not [name for name in names if units_of(name)[0].version in ("", before[name])]
    saved = [units_of(written[4])[0].version]
    datasets.Dataset.from_dict({"text": TEXTS[::-1]}).save_to_disk(str(tmp_path / "turned"))
    assert saved == [units_of(written[4])[0].version] != [units_of(tmp_path / "turned")[0].version]
    found = []
    for data in (b"a", b"b"):
        memory.pipe("/bucket/a.txt", data)
        found.append(units_of("memory://bucket/a.txt")[0].version)
    assert len(set(found)) == 2


def test_small_files_make_one_unit_and_each_is_an_origin(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text("x" * 100)
    units = units_of(tmp_path, 1000)
    assert [len(unit.files) for unit in units] == [10, 10, 10] and len({unit.key for unit in units}) == 3
    assert units[1].file == units[1].files[0] == str(tmp_path / "10.txt")
    [[first], *_] = [list(unit.read()) for unit in units]
    assert first.records.tolist() == list(range(10)) and units[0].records == 10 and first.size == 1000


@pytest.fixture
def memory():
    """A store that is no disk."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


def test_any_store_is_read_like_a_folder(tmp_path, memory, blocks):
    blocks(300)
    write_everything(tmp_path / "all")
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        memory.pipe(f"/bucket/{name}", (tmp_path / "all" / name).read_bytes())
        assert texts(f"memory://bucket/{name}", unit_bytes=500) == TEXTS
    memory.pipe("/bucket/.hidden/b.txt", b"hidden")
    memory.pipe("/bucket/sub/b.txt", b"b")
    memory.pipe("/bucket/sub/c.bin", b"c")
    assert texts("memory://bucket") == TEXTS * 4 + ["b"]
    assert texts("memory://bucket/*.jsonl*") == TEXTS * 3
    assert texts("memory://bucket/**/*.txt") == ["b"]
    assert [record.place for record in read("memory://bucket/sub")] == ["memory:///bucket/sub/b.txt"]
    for name in ("memory://bucket/none.jsonl", "memory://elsewhere"):
        with pytest.raises(DataError, match="does not exist"):
            read(name)
    with pytest.raises(DataError, match=r"matches no files"):
        read("memory://bucket/*.java")
    with pytest.raises(DataError, match="nosuch://x: cannot be opened"):
        read("nosuch://x")


def test_patterns(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "sub/deep/c.jsonl", ".hidden.jsonl", "sub/d.md", "test/e.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, [path.stem])
    assert texts(f"{tmp_path}/*.jsonl") == ["a", "b"]
    assert texts(f"{tmp_path}/**/*.jsonl") == ["a", "b", "c", "e"]
    assert texts(f"{tmp_path}/**/*.jsonl", exclude=("test/*", "*/test/*", "b.*")) == ["a", "c"]
    assert texts(f"{tmp_path}/[b-z].jsonl") == ["b"]
    with pytest.raises(DataError, match="matches no files"):
        read(f"{tmp_path}/*.zst")
    # A file whose own name looks like a pattern is that file.
    write_jsonl(tmp_path / "[b-z].jsonl", ["itself"])
    assert texts(f"{tmp_path}/[b-z].jsonl") == ["itself"]


ROWS = [{"a": {"b": {"c": "deep"}}, "a.b": {"c": "half"}, "x": "flat"}, {"a": {"b": {"c": "two"}}, "x": "flat"}]


def test_a_path_leads_to_nested_fields_and_a_name_with_dots_wins(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [*ROWS, {"a.b.c": "whole", "a": {"b": {"c": "x"}}}, {"a": 1}]))
    assert [(r.text, r.fault) for r in read(path, text_field="a.b.c")] == [
        ("half", ""),
        ("two", ""),
        ("whole", ""),
        ("", "no field 'a.b.c'"),
    ]


def test_a_path_leads_into_columns(tmp_path):
    import datasets

    rows = [{"a": {"b": {"c": f"deep {k}", "d": 1}}, "x.y": {"z": f"half {k}"}} for k in range(20)]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
    for path in (tmp_path / "a.parquet", tmp_path / "saved"):
        assert texts(path, text_field="a.b.c") == [f"deep {k}" for k in range(20)]
        assert texts(path, text_field="x.y.z") == [f"half {k}" for k in range(20)]
        with pytest.raises(DataError, match=r"no column 'a\.b\.q'"):
            read(path, text_field="a.b.q")
        with pytest.raises(DataError, match=r"column 'a\.b\.d' holds int64, not text"):
            read(path, text_field="a.b.d")


@pytest.mark.parametrize("kind", ["a.jsonl", "a.parquet", "a.saved", "texts"])
def test_filters_count_characters_and_are_no_faults(tmp_path, kind):
    values = ["", "12", "123", "😀😀😀😀", "x" * 5, "x" * 6, " "]
    if kind == "texts":
        for number, value in enumerate(values):
            (tmp_path / f"{number}.txt").write_text(value)
        path = tmp_path
    else:
        path = tmp_path / kind
        table = pyarrow.table({"text": values})
        if kind == "a.jsonl":
            write_jsonl(path, values)
        elif kind == "a.parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            import datasets

            datasets.Dataset(table).save_to_disk(str(path))
    [unit] = units_of(path, min_characters=3, max_characters=5)
    [found] = unit.read()
    assert found.texts == ["", "123", "😀😀😀😀", "x" * 5] and found.records.tolist() == [0, 2, 3, 4]
    assert found.filtered == {TOO_SHORT: 2, TOO_LONG: 1} and not found.faults and unit.records == 7


def test_bad_lines_are_counted_among_good_ones(tmp_path):
    """Field report 21: a cut line, a line without its field, and a cut tail."""
    lines = [json.dumps({"text": f"line {k}"}) for k in range(1, 11)]
    lines[3], lines[6] = '{"text": "cut', '{"title": "x"}'
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": "tai']))
    faults = [(record.place[-3:].lstrip("l"), record.fault) for record in read(tmp_path / "a.jsonl") if record.fault]
    assert [place.split(":")[1] for place, _ in faults] == ["4", "7", "11"]
    assert [fault for _, fault in faults] == ["not valid JSON", "no field 'text'", "not valid JSON"]


def test_the_hub_is_read_as_a_stream(tmp_path, monkeypatch):
    import datasets

    calls = []
    load = datasets.load_dataset

    def load_dataset(name, config, **how):
        calls.append((name, config, how))
        return load("parquet", data_files={"train": [str(tmp_path / f"{k}.parquet") for k in range(3)]}, **how)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for part in range(3):
        table = pyarrow.table({"text": TEXTS[part * 10 : part * 10 + 10]})
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
    assert texts("someone/something", streaming=True, config="en") == TEXTS[:30]
    assert calls[0] == ("someone/something", "en", {"streaming": True})
    units = units_of("someone/something", streaming=True)
    assert [unit.size for unit in units] == [0, 0, 0] and len({unit.key for unit in units}) == 3
    with pytest.raises(DataError, match="no split 'test'"):
        read("someone/something", streaming=True, split="test")
    with pytest.raises(DataError, match="no column 'body'"):
        read("someone/something", streaming=True, text_field="body")


def test_a_name_that_no_hub_knows_is_named(monkeypatch):
    import datasets

    def load_dataset(*names, **how):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=r"nobody: is no local file or folder, .* \(no network\)"):
        find_units(["nobody"], ReadOptions(), 1 << 20)


def test_the_arrow_and_the_json_reader_agree_on_random_texts(tmp_path):
    draw = random.Random(3)
    values = ["".join(chr(draw.choice([draw.randrange(1, 0xD800), 10])) for _ in range(9)) for _ in range(500)]
    pyarrow.parquet.write_table(pyarrow.table({"text": values}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == texts(write_jsonl(tmp_path / "a.jsonl", values)) == values


KINDS = [pyarrow.string_view(), pyarrow.binary_view()]
KINDS += [pyarrow.dictionary(pyarrow.int32(), kind) for kind in (pyarrow.string(), pyarrow.large_string())]
KINDS += [pyarrow.dictionary(pyarrow.int8(), pyarrow.binary())]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_text_is_read_however_arrow_holds_it(tmp_path, kind):
    """Dictionaries, as pandas writes categories, and views; with rows that are no text."""
    values = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    some: list[bytes | None] = [b"twice", b"caf\xc3\xa9", None, b"twice"]
    if "binary" in str(kind):
        some.append(b"\xff")
    column = pyarrow.array(some, pyarrow.binary()).cast(values)
    column = column.dictionary_encode().cast(kind) if values != kind else column
    table = pyarrow.table({"text": column, "in": pyarrow.StructArray.from_arrays([column], ["deep"])})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    expected = [("twice", ""), ("café", ""), ("", NOT_TEXT), ("twice", ""), ("", NOT_UTF8)][: len(some)]
    for name in ("text", "in.deep"):
        assert [(found.text, found.fault) for found in read(tmp_path / "a.parquet", text_field=name)] == expected
    numbers = pyarrow.array([1, 1]).dictionary_encode()
    with pytest.raises(DataError, match=r"column 'text' holds dictionary<values=int64.*, not text"):
        arrow.find_column(pyarrow.table({"text": numbers}).schema, "text", "a.parquet")


def test_chunks_of_a_column_are_one(tmp_path):
    column = pyarrow.chunked_array([["a", "b"], ["c"]])
    found = arrow.column_texts(pyarrow.table({"text": column}), ["text"], 5, 9, base.ReadOptions())
    assert found.texts == ["a", "b", "c"] and np.array_equal(found.records, [5, 6, 7]) and found.size == 9

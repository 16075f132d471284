"""Token files of other libraries: made here by hand, byte by byte, from their documented layouts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from data_pipeline.errors import DataError
from data_pipeline.format import pieces
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.export import export_megatron
from data_pipeline.format.foreign import arrays, datatrove, mds, megatron
from data_pipeline.format.foreign.find import Options, find, formats
from data_pipeline.format.imports import Import
from data_pipeline.format.manifest import Manifest
from data_pipeline.format.verify import verify
from data_pipeline.format.writer import DatasetWriter, write_documents
from data_pipeline.tokenizer.base import load_tokenizer
from tests.data_pipeline.kit import EOD, byte_tokenizer, files_of, texts_in

TEXTS = [b"one", b"two and", b"3", b"four four", b"five"]
DOCUMENTS = [[*text, EOD] for text in TEXTS]
STREAM = [token for ids in DOCUMENTS for token in ids]
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


@pytest.fixture
def small_pieces(monkeypatch):
    """Every document and every few tokens a piece of their own."""
    for module in (pieces, arrays, datatrove, mds):
        monkeypatch.setattr(module, "PIECE_TOKENS", 6)
    monkeypatch.setattr(megatron, "_BLOCK", 2)


def bring(tmp: Path, *inputs: Path, format_name: str | None = None, **options: Any) -> Manifest:
    """Imports into tmp/set with the byte tokenizer."""
    tokenizer = load_tokenizer(byte_tokenizer(tmp / "tokenizer"))
    job = Import({"train": inputs}, Options(EOD, **options), format_name)
    with DatasetWriter(tmp / "set", vocab_size=257, eod_id=EOD, shard_tokens=10, overwrite=True) as writer:
        manifest = job.run(writer, tokenizer, "")
    assert verify(tmp / "set")
    return manifest


def write_megatron(
    path: Path, sequences: list[list[int]], dtype: str, firsts: list[int] | None = None, order: list[int] | None = None
) -> Path:
    """A .bin and .idx. firsts: the first sequence of each document; order: in which sequences lie in the .bin."""
    starts, data = {}, b""
    for number in order or range(len(sequences)):
        starts[number] = len(data)
        data += np.asarray(sequences[number], dtype).tobytes()
    firsts = list(range(len(sequences))) if firsts is None else firsts
    count = len(sequences)
    path.with_suffix(".bin").write_bytes(data)
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[dtype], count, len(firsts) + 1)
        + struct.pack(f"<{count}i", *map(len, sequences))
        + struct.pack(f"<{count}q", *(starts[number] for number in range(count)))
        + struct.pack(f"<{len(firsts) + 1}q", *firsts, count)
    )
    return path.with_suffix(".idx")


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "int64"])
def test_megatron_is_read(tmp_path, dtype, small_pieces):
    index = write_megatron(tmp_path / "corpus", DOCUMENTS, dtype)
    for named in (index, index.with_suffix(".bin"), index.with_suffix("")):
        manifest = bring(tmp_path, named)
    assert texts_in(tmp_path / "set") == TEXTS
    assert manifest.settings["eod_added"] == 0
    dataset = open_dataset(tmp_path / "set", "train")
    assert dataset.origin(3) == (str(index), 3) and len(dataset.shards) > 1
    assert (manifest.sources[0].documents, manifest.sources[0].tokens) == ({"train": 5}, {"train": len(STREAM)})


def test_megatron_documents_of_several_sequences_out_of_order_and_empty_ones(tmp_path, small_pieces):
    sequences = [[*b"one"], [EOD], [*b"two"], [*b" and", EOD], [], [*b"3"], [*b"four four", EOD], [*b"five", EOD]]
    index = write_megatron(
        tmp_path / "corpus", sequences, "int32", firsts=[0, 2, 4, 5, 6, 7, 8], order=[*range(7, -1, -1)]
    )
    manifest = bring(tmp_path, index)
    assert texts_in(tmp_path / "set") == TEXTS
    assert (manifest.settings["eod_added"], manifest.sources[0].empties) == (1, 2)
    dataset = open_dataset(tmp_path / "set", "train")
    assert [dataset.origin(k)[1] for k in range(5)] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("vocab_size", [257, 65_536, 65_537])
def test_a_set_goes_to_megatron_and_back(tmp_path, vocab_size):
    random = np.random.default_rng(1)
    documents = [random.integers(300 % vocab_size, vocab_size, size).tolist() for size in random.integers(1, 50, 40)]
    splits = {"train": documents, "validation": documents[:3]}
    eod = vocab_size - 1 if vocab_size == 257 else EOD
    documents[:] = [[token for token in ids if token != eod] or [1] for ids in documents]
    write_documents(tmp_path / "set", splits, vocab_size=vocab_size, eod_id=eod, shard_tokens=300)
    written = export_megatron(tmp_path / "set", tmp_path / "out")
    assert [str(path) for path in written["validation"]] == [str(tmp_path / "out/validation/shard-00000")]
    read = []
    for prefix in written["train"]:
        data = Path(f"{prefix}.idx").read_bytes()
        version, code, count, boundaries = struct.unpack("<QBQQ", data[9:34])
        assert (data[:9], version, boundaries) == (b"MMIDIDX\x00\x00", 1, count + 1)
        lengths = struct.unpack(f"<{count}i", data[34 : 34 + 4 * count])
        pointers = struct.unpack(f"<{count}q", data[34 + 4 * count : 34 + 12 * count])
        assert struct.unpack(f"<{count + 1}q", data[34 + 12 * count :]) == tuple(range(count + 1))
        ids = np.fromfile(f"{prefix}.bin", {8: "<u2", 4: "<i4"}[code])
        read += [ids[p // ids.itemsize :][:n].tolist() for n, p in zip(lengths, pointers, strict=True)]
        assert code == (4 if vocab_size > 65_536 else 8)
    assert read == [[*ids, eod] for ids in documents]
    lines = (tmp_path / "out/train.txt").read_text().split("\n")
    assert [line.split()[1] for line in lines if line] == [str(path) for path in written["train"]]
    found = [piece for path in find(tmp_path / "out/train")[1] for piece in megatron.documents(path, Options(eod))]
    assert [length for piece in found for length in piece.lengths] == [len(ids) + 1 for ids in documents]


def test_round_trip_is_byte_identical(tmp_path):
    documents = [[*text] for text in TEXTS]
    write_documents(tmp_path / "first", {"train": documents}, vocab_size=257, eod_id=EOD, shard_tokens=10)
    export_megatron(tmp_path / "first", tmp_path / "out", copy=True)
    bring(tmp_path, tmp_path / "out/train")
    before, after = files_of(tmp_path / "first"), files_of(tmp_path / "set")
    tokens = {name for name in before if name.endswith((".bin", ".len", ".xxh"))}
    assert len(tokens) >= 6
    assert {name: before[name] for name in tokens} == {name: after[name] for name in tokens}


def test_pointers_beyond_32_bits(tmp_path):
    lengths = np.full(600, 5_000_000, "<i4")
    pointers = np.arange(600, dtype="<i8") * 10_000_000
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 600, 601)
    boundaries = np.arange(601, dtype="<i8").tobytes()
    (tmp_path / "big.idx").write_bytes(head + lengths.tobytes() + pointers.tobytes() + boundaries)
    with open(tmp_path / "big.bin", "wb") as file:
        file.truncate(600 * 10_000_000)
        file.seek(599 * 10_000_000)
        file.write(b"\x07\x00")
    *_, last = megatron.documents(tmp_path / "big.idx", Options(EOD))
    assert (last.lengths.tolist(), int(last.ids[0]), last.ids[1:].any()) == ([5_000_000], 7, False)
    wrapped = pointers.astype("<i4").astype("<i8")
    (tmp_path / "big.idx").write_bytes(head + lengths.tobytes() + wrapped.tobytes() + boundaries)
    with pytest.raises(DataError, match=r"sequence 215 lies at byte -2144967296 .* 32-bit pointers"):
        list(megatron.documents(tmp_path / "big.idx", Options(EOD)))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"X" + data[1:], "does not begin with MMIDIDX"),
        (lambda data: data[:-5], "bytes, its header says .*; it was cut"),
        (lambda data: data[:17] + b"\x07" + data[18:], "ids of type float32"),
        (lambda data: data[:-8] + struct.pack("<q", 4), "does not say to which documents its 5 sequences belong"),
        (lambda data: data + b"\0\0\1\0\0", "several modes"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, damage, said):
    index = write_megatron(tmp_path / "corpus", DOCUMENTS, "uint16")
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(DataError, match=f"corpus.idx: .*{said}"):
        bring(tmp_path, index)
    assert not (tmp_path / "set").exists() and not (tmp_path / "set.building").exists()


def write_datatrove(folder: Path, dtype: str, documents: list[list[int]] = DOCUMENTS) -> Path:
    folder.mkdir()
    path = folder / "00000_00000_shuffled.ds"
    np.concatenate(documents).astype(dtype).tofile(path)
    np.cumsum([len(ids) for ids in documents]).astype("<u8").tofile(f"{path}.index")
    return path


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_datatrove_is_read(tmp_path, dtype, small_pieces):
    path = write_datatrove(tmp_path / "out", dtype)
    with pytest.raises(DataError, match="use --dtype uint16 or uint32"):
        bring(tmp_path, path.parent)
    Path(f"{path}.metadata").write_text(f"tok|en|{np.dtype(dtype).itemsize}\n{len(STREAM)}\n29 T")
    bring(tmp_path, path.parent)
    assert texts_in(tmp_path / "set") == TEXTS
    Path(f"{path}.metadata").unlink()
    Path(f"{path}.index").unlink()
    with pytest.raises(DataError, match=r"has no .*index beside it"):
        bring(tmp_path, path, dtype=dtype)
    bring(tmp_path, path, dtype=dtype, cut_at_eod=True)
    assert texts_in(tmp_path / "set") == TEXTS


def test_datatrove_that_was_cut_is_named(tmp_path):
    path = write_datatrove(tmp_path / "out", "uint16")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match=rf"ends at token {len(STREAM)}, .* has {len(STREAM) - 1}"):
        bring(tmp_path, path, dtype="uint16")


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64", ">u2"])
def test_arrays_are_read(tmp_path, dtype, small_pieces):
    np.save(tmp_path / "ids.npy", np.asarray(STREAM, dtype))
    bring(tmp_path, tmp_path / "ids.npy")
    assert texts_in(tmp_path / "set") == TEXTS
    if not dtype.startswith(">"):
        np.asarray(STREAM[:-1], dtype).tofile(tmp_path / "train.bin")
        with pytest.raises(DataError, match="say which with --format"):
            bring(tmp_path, tmp_path / "train.bin")
        with pytest.raises(DataError, match="use --dtype"):
            bring(tmp_path, tmp_path / "train.bin", format_name="arrays")
        manifest = bring(tmp_path, tmp_path / "train.bin", format_name="arrays", dtype=dtype)
        assert texts_in(tmp_path / "set") == TEXTS
        assert manifest.settings["eod_added"] == 1


def write_mds(folder: Path, samples: list[list[int]], encoding: str, packed: bool = False, head: bytes = b"") -> None:
    """Two shards of samples with an id (str) beside the ids, the latter after `head`."""
    folder.mkdir()
    dtype = encoding.split(":")[1] if ":" in encoding else "int64"
    shards = []
    for number, part in enumerate((samples[:3], samples[3:])):
        fixed = np.dtype(dtype).itemsize * int(encoding.split(":")[2]) if encoding.count(":") == 2 else None
        columns = {"column_names": ["id", "tokens"], "column_sizes": [None, fixed]}
        columns |= {"column_encodings": ["str", encoding]}
        config = json.dumps(columns).encode()
        rows = []
        for k, ids in enumerate(part):
            name, value = f"document {k}".encode(), np.asarray(ids, dtype).tobytes()
            if encoding.count(":") < 2 and encoding != "bytes":
                value = head + bytes([1 << 2 | 0, len(ids)]) + value
            sizes = [len(name)] + ([] if fixed else [len(value)])
            rows.append(struct.pack(f"<{len(sizes)}I", *sizes) + name + value)
        first = 4 * (len(rows) + 2) + len(config)
        offsets = np.cumsum([first, *map(len, rows)]).astype("<u4")
        data = struct.pack("<I", len(rows)) + offsets.tobytes() + config + b"".join(rows)
        name = f"shard.{number:05d}.mds"
        (folder / (name + ".zstd" * packed)).write_bytes(zstandard.compress(data) if packed else data)
        shards.append(
            columns
            | {"format": "mds", "samples": len(rows), "compression": "zstd:3" if packed else None}
            | {"raw_data": {"basename": name, "bytes": len(data), "hashes": {}}}
            | {"zip_data": {"basename": f"{name}.zstd", "bytes": 0, "hashes": {}} if packed else None}
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("encoding", "head"), [("ndarray:uint16", b""), ("ndarray:int32", b""), ("ndarray", b"\x41")])
def test_mds_is_read(tmp_path, encoding, head, packed, small_pieces):
    write_mds(tmp_path / "mds", DOCUMENTS, encoding, packed, head)
    bring(tmp_path, tmp_path / "mds")
    assert texts_in(tmp_path / "set") == TEXTS
    with pytest.raises(DataError, match="has columns id, tokens; say with --column"):
        bring(tmp_path, tmp_path / "mds", column="ids")


@pytest.mark.parametrize(("encoding", "dtype"), [("ndarray:int32:7", None), ("bytes", "int64")])
def test_mds_rows_of_one_stream_are_cut_at_the_ends(tmp_path, encoding, dtype, small_pieces):
    rows = [STREAM[start : start + 7] for start in range(0, len(STREAM) // 7 * 7, 7)]
    write_mds(tmp_path / "mds", rows, encoding)
    with pytest.raises(DataError, match=r"document 0 has the end-of-document id 256 inside; .*--documents eod"):
        bring(tmp_path, tmp_path / "mds", dtype=dtype)
    manifest = bring(tmp_path, tmp_path / "mds", dtype=dtype, cut_at_eod=True)
    kept = bytes(token if token != EOD else 0 for token in STREAM[: len(STREAM) // 7 * 7]).split(b"\0")
    assert texts_in(tmp_path / "set") == [text for text in kept if text]
    assert manifest.settings["cut_at_eod"] and manifest.settings["eod_added"] == int(kept[-1] != b"")


def test_mds_that_was_cut_is_named(tmp_path):
    write_mds(tmp_path / "mds", DOCUMENTS, "ndarray:int32")
    path = tmp_path / "mds/shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"shard\.00001\.mds: has \d+ bytes"):
        bring(tmp_path, tmp_path / "mds")
    path.unlink()
    with pytest.raises(DataError, match=r"shard\.00001\.mds: is missing"):
        bring(tmp_path, tmp_path / "mds")


@pytest.mark.parametrize("bad", [257, -1, 70_000])
def test_ids_of_another_vocabulary_are_refused(tmp_path, bad):
    index = write_megatron(tmp_path / "corpus", [*DOCUMENTS[:2], [1, 2, bad, EOD]], "int32")
    with pytest.raises(DataError, match=f"corpus.idx: document 2 has token id {bad}, outside the vocabulary of 257"):
        bring(tmp_path, index)


def test_an_end_inside_a_document_is_named(tmp_path):
    index = write_megatron(tmp_path / "corpus", [DOCUMENTS[0], DOCUMENTS[1] + DOCUMENTS[2]], "int32")
    with pytest.raises(DataError, match=r"corpus.idx: document 1 has the end-of-document id 256 inside"):
        bring(tmp_path, index)
    bring(tmp_path, index, cut_at_eod=True)
    assert texts_in(tmp_path / "set") == TEXTS[:3]


def test_what_holds_no_tokens_is_named(tmp_path):
    assert set(formats()) == {"arrays", "datatrove", "mds", "megatron"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no token files: none of \*\.npy \(arrays\)"):
        find(tmp_path / "empty")
    with pytest.raises(DataError, match="does not exist"):
        find(tmp_path / "absent")
    with pytest.raises(DataError, match="--format parquet is not known; the formats are"):
        find(tmp_path, "parquet")
    write_datatrove(tmp_path / "both", "uint16")
    write_megatron(tmp_path / "both/corpus", DOCUMENTS, "uint16")
    with pytest.raises(DataError, match=r"several formats \(datatrove, megatron\)"):
        find(tmp_path / "both")
    np.save(tmp_path / "none.npy", np.zeros(0, "uint16"))
    with pytest.raises(DataError, match="holds no tokens"):
        bring(tmp_path, tmp_path / "none.npy")
    np.save(tmp_path / "none.npy", np.zeros(3, "float32"))
    with pytest.raises(DataError, match="has ids of type float32"):
        bring(tmp_path, tmp_path / "none.npy")

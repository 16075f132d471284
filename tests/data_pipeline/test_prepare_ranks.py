"""The same bytes from any number of processes, ranks and parts, and from units of any size."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.manifest import read_manifest
from data_pipeline.format.verify import verify
from data_pipeline.order.permutation import epoch_keys, permute
from data_pipeline.prepare import build, shuffle
from data_pipeline.prepare.build import prepare
from data_pipeline.prepare.decide import cut_shards
from data_pipeline.prepare.documents import DOCUMENT_DTYPE, hash_texts, in_split, split_of
from data_pipeline.prepare.duplicates import mark_duplicates, read_marks
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.place import Place
from data_pipeline.prepare.plan import default_unit_bytes, make_plan
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.prepare.ranks import Ranks, part_of
from data_pipeline.prepare.workers import Workers
from data_pipeline.tokenizer.base import load_tokenizer
from tests.data_pipeline.kit import byte_tokenizer, files_of

ROOT = Path(__file__).parents[2]
RANDOM = np.random.default_rng(7)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Two inputs with documents that repeat in and across them, blank ones and bad lines; and the byte tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    byte_tokenizer(folder / "byte")
    for name in ("a", "b"):
        lines = []
        for k in range(200):
            text = f"{int(RANDOM.integers(120)):03d}" * int(RANDOM.integers(1, 6))
            lines.append(json.dumps({"text": "" if k % 29 == 5 else text}))
            if k % 67 == 11:
                lines.append("{broken" if name == "a" else '{"no": 1}')
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def options_for(corpus: Path, output: Path, **changes: object) -> PrepareOptions:
    chosen: dict[str, object] = {
        "inputs": (str(corpus / "a.jsonl"), str(corpus / "b.jsonl")),
        "tokenizer": str(corpus / "byte"),
        "validation_fraction": 0.2,
        "deduplicate": True,
        "on_error": "skip",
        "shard_tokens": 300,
        "unit_bytes": 1500,
    }
    return PrepareOptions(output=str(output / "set"), **chosen | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected")
    prepare(options_for(corpus, folder), PrepareProgress(quiet=True))
    assert verify(folder / "set")
    return files_of(folder / "set")


def lines_of(corpus: Path) -> list[tuple[str, int, str | None]]:
    """(file, line from 0, its text or None) of every line, read in the plainest way."""
    found = []
    for name in ("a", "b"):
        path = corpus / f"{name}.jsonl"
        for number, line in enumerate(path.read_text().splitlines()):
            try:
                text = json.loads(line).get("text")
            except ValueError:
                text = None
            found.append((str(path), number, text))
    return found


@pytest.mark.parametrize("keep_order", [False, True])
def test_the_content_is_what_a_plain_reading_gives(corpus, tmp_path, keep_order):
    manifest = prepare(options_for(corpus, tmp_path, keep_order=keep_order), PrepareProgress(quiet=True))
    assert manifest
    lines, first = lines_of(corpus), {}
    for file, number, text in lines:
        if text:
            first.setdefault(text, (file, number))
    found = {}
    for split in ("train", "validation"):
        dataset = open_dataset(tmp_path / "set", split)
        order = [dataset.origin(index) for index in range(dataset.documents)]
        assert (order == sorted(order)) == keep_order
        for index, origin in enumerate(order):
            found[bytes(dataset.document(index)[:-1].astype("u1")).decode()] = origin
        shards = manifest.splits[split].shards
        if keep_order:
            assert max(shard.tokens for shard in shards) <= 300
        else:
            counts = [shard.documents for shard in shards]
            assert len(counts) == -(-dataset.tokens // 300) and max(counts) - min(counts) <= 1
    assert found == first
    for name, source in zip("ab", manifest.sources, strict=True):
        mine = [text for file, _, text in lines if file.endswith(f"{name}.jsonl")]
        kept = [text for text, (file, _) in first.items() if file.endswith(f"{name}.jsonl")]
        assert source.empties == mine.count("")
        assert sum(source.errors.values()) == mine.count(None) == 3
        assert sum(source.documents.values()) == len(kept)
        assert sum(source.tokens.values()) == sum(len(text) + 1 for text in kept)
        assert source.duplicates == len(mine) - mine.count(None) - mine.count("") - len(kept) > 0
        assert source.longest == max(map(len, kept)) + 1
    errors = [json.loads(line) for line in (tmp_path / "set/errors.jsonl").read_text().splitlines()]
    assert [(error["file"], error["line"]) for error in errors] == [(f, n + 1) for f, n, text in lines if text is None]
    assert Counter(error["reason"] for error in errors) == {"not valid JSON": 3, "no field 'text'": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"unit_bytes": 100},
        {"unit_bytes": 777},
        {"unit_bytes": None},
        {"tokenizer_backend": "reference", "processes": 2},
        {"processes": 4},
    ],
    ids=str,
)
def test_units_and_processes_change_no_byte(corpus, expected, tmp_path, changes):
    prepare(options_for(corpus, tmp_path, **changes), PrepareProgress(quiet=True))
    found = files_of(tmp_path / "set")
    if changes.get("tokenizer_backend"):  # the manifest names the library
        assert found.pop("manifest.json") != expected["manifest.json"]
        assert found == {name: data for name, data in expected.items() if name != "manifest.json"}
    else:
        assert found == expected


def test_units_change_no_byte_where_the_order_is_kept(corpus, tmp_path):
    for size in (100, 1500):
        prepare(
            options_for(corpus, tmp_path / str(size), keep_order=True, unit_bytes=size), PrepareProgress(quiet=True)
        )
    assert files_of(tmp_path / "100/set") == files_of(tmp_path / "1500/set")


def test_shuffled_documents_are_where_the_permutation_says(corpus, expected, tmp_path):
    """Against the set in the order of the input, document by document."""
    prepare(options_for(corpus, tmp_path, keep_order=True), PrepareProgress(quiet=True))
    (tmp_path / "shuffled").mkdir()
    for name, data in expected.items():
        (tmp_path / "shuffled" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "shuffled" / name).write_bytes(data)
    for split in ("train", "validation"):
        kept, shuffled = open_dataset(tmp_path / "set", split), open_dataset(tmp_path / "shuffled", split)
        places = permute(np.arange(kept.documents), kept.documents, epoch_keys(0, split, 0))
        for index, place in enumerate(places.tolist()):
            assert shuffled.document(place).tolist() == kept.document(index).tolist()
            assert shuffled.origin(place) == kept.origin(index)


def test_more_units_than_a_shard_is_read_from_are_merged_first(corpus, expected, tmp_path, monkeypatch):
    merged = []
    real = shuffle.merge_runs
    monkeypatch.setattr(build, "merge_runs", lambda *values: merged.append(values[1].number) or real(*values))
    for name, value in (("FAN_IN", 4), ("_CHUNK_TOKENS", 50), ("_CHUNK_DOCUMENTS", 7)):
        monkeypatch.setattr(shuffle, name, value)
    prepare(options_for(corpus, tmp_path, unit_bytes=700), PrepareProgress(quiet=True))
    assert merged == [0, 1, 2, 3] and files_of(tmp_path / "set") == expected


def start_part(options: PrepareOptions, part: str) -> int:
    """A part of an array job in a child."""
    if child := os.fork():
        return child
    try:
        prepare(options, PrepareProgress(quiet=True), part_of(part))
    except BaseException as error:  # nothing of pytest's may go on in the child
        print(error, flush=True)
        os._exit(2)
    os._exit(0)


def test_parts_of_an_array_job_build_one_set(corpus, expected, tmp_path):
    options = options_for(corpus, tmp_path)
    children = [start_part(options, part) for part in ("1/3", "0/3", "2/3")]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert files_of(tmp_path / "set") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_part_that_stops_stops_the_others(corpus, tmp_path):
    options = options_for(corpus, tmp_path, on_error="stop")
    child = start_part(options, "0/2")
    with pytest.raises(DataError, match=r"(part 0 stopped: )?.*a\.jsonl:\d+: not valid JSON"):
        prepare(options, PrepareProgress(quiet=True), Ranks(1, 2))
    os.waitpid(child, 0)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "no space: some .* the same command again"),
        (PermissionError(13, "Permission denied", "there/7.ids"), "there/7.ids: cannot be used: Permission denied"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (MemoryError(), "MemoryError"),
    ],
    ids=repr,
)
def test_whatever_stops_a_part_is_known_to_the_others(corpus, tmp_path, monkeypatch, error, said, room):
    options = options_for(corpus, tmp_path)
    plan = make_plan(options, load_tokenizer(corpus / "byte").digest)
    leader = Place(options.output)

    def fail(*values):
        raise error

    def full(path, data):
        path.with_name(path.name + ".part").write_bytes(data[:1])
        raise OSError(28, "No space left on device")

    with leader.lead(plan):
        leader.announce(plan)
        monkeypatch.setattr(build, "encode_unit", fail)
        if not room:
            monkeypatch.setattr("data_pipeline.prepare.place.write_whole", full)
        with pytest.raises(Exception, match=said if str(error) else None) as raised:
            prepare(options, PrepareProgress(quiet=True), Ranks(1, 2))
        assert isinstance(raised.value, DataError) or raised.value is error
        with pytest.raises(DataError, match=f"part 1 stopped: .*{said if room else 'it had no room on the disk'}"):
            leader.check_failures()
        assert [path.name for path in (leader.folder / "failed").iterdir()] == ["part 1"]


@pytest.mark.parametrize("text", ["2/2", "0", "1/0", "-1/2", "a/b"])
def test_a_part_that_is_none_is_refused(text):
    with pytest.raises(DataError, match=f"--part {text} is not K/N"):
        part_of(text)


def mpirun(arguments: list[str], ranks: int = 2) -> subprocess.CompletedProcess[str]:
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--allow-run-as-root", sys.executable, "-m"]
    return subprocess.run(
        [*command, "launch.megaxf", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_ranks_of_mpi_build_one_set_and_fail_together(corpus, expected, tmp_path):
    inputs = [str(corpus / "a.jsonl"), str(corpus / "b.jsonl"), "--tokenizer", str(corpus / "byte")]
    settings = ["--validation-fraction", "0.2", "--shard-tokens", "300", "--unit-bytes", "1500", "--deduplicate"]
    request = ["prepare", *inputs, *settings, "--processes", "1", "--output", str(tmp_path / "set")]
    bad = mpirun(request)
    assert bad.returncode != 0
    # Which rank is first at a bad line is chance; each names its own with the line in the file.
    said = re.search(r"megaxf: error: rank [01] of 2: \S*a\.jsonl:(\d+): not valid JSON; correct it", bad.stderr)
    assert said and int(said[1]) - 1 in [number for _, number, text in lines_of(corpus) if text is None]
    assert "Traceback" not in bad.stderr and not (tmp_path / "set").exists()
    good = mpirun([*request, "--on-error", "skip", "--json"])
    assert good.returncode == 0, good.stderr
    assert files_of(tmp_path / "set") == expected
    assert json.loads(good.stdout)["digest"] == read_manifest(tmp_path / "set").digest


def test_cuts_agree_with_a_loop_over_documents():
    for _ in range(200):
        units = [RANDOM.integers(1, 9, int(RANDOM.integers(0, 6))) for _ in range(int(RANDOM.integers(1, 8)))]
        limit = int(RANDOM.integers(1, 20))
        places = [(unit, index) for unit, lengths in enumerate(units) for index in range(len(lengths))]
        shards: list[list[tuple[int, int]]] = []
        filled = limit + 1
        for unit, index in places:
            length = int(units[unit][index])
            if filled + length > limit:
                shards.append([])
                filled = 0
            shards[-1].append((unit, index))
            filled += length
        cuts = list(cut_shards("train", [int(unit.sum()) for unit in units], units.__getitem__, limit))
        assert [[place for place in places if cut.start <= place < cut.stop] for cut in cuts] == shards


def test_duplicates_agree_with_a_dictionary_in_many_piles(tmp_path):
    texts = [str(RANDOM.integers(400)).encode() for _ in range(1000)]
    documents = np.zeros(len(texts), DOCUMENT_DTYPE)
    documents["high"], documents["low"] = hash_texts(texts).T
    documents["high"][:50] = documents["high"][0]  # half a hash is not enough to be equal
    pieces = np.split(documents, np.sort(RANDOM.integers(0, len(texts), 6)))
    with Workers(1) as workers:
        mark_duplicates(pieces, len(texts), tmp_path / "marks", workers, pile=100)
    seen: set[tuple[int, int]] = set()
    wanted = []
    for high, low in zip(documents["high"].tolist(), documents["low"].tolist(), strict=True):
        wanted.append((high, low) in seen)
        seen.add((high, low))
    assert read_marks(tmp_path / "marks", 0, 1000).tolist() == wanted and 0 < sum(wanted) < 1000
    assert read_marks(tmp_path / "marks", 10, 20).tolist() == wanted[10:30]


def test_the_split_of_one_is_that_of_many():
    import xxhash

    texts = [str(k).encode() for k in range(500)]
    documents = np.zeros(len(texts), DOCUMENT_DTYPE)
    documents["high"], documents["low"] = hash_texts(texts).T
    one = [split_of(xxhash.xxh3_128_digest(text), 0.3) == "validation" for text in texts]
    assert in_split(documents, "validation", 0.3).tolist() == one and 100 < sum(one) < 200


def test_units_follow_from_the_size_of_the_input_alone(corpus, tmp_path):
    assert [default_unit_bytes(size) >> 20 for size in (0, 1 << 33, 1 << 36, 1 << 45)] == [8, 8, 64, 512]
    plan = make_plan(options_for(corpus, tmp_path), "x")
    assert plan.origins == [str(corpus / "a.jsonl"), str(corpus / "b.jsonl")] and len(plan.units) == 6
    assert make_plan(options_for(corpus, tmp_path, processes=3), "x").ids_digest == plan.ids_digest
    others = [
        make_plan(options_for(corpus, tmp_path, **change), "x").ids_digest
        for change in ({"add_bos": True}, {"unit_bytes": 2000}, {"inputs": (str(corpus / "a.jsonl"),)})
    ]
    assert len({plan.ids_digest, make_plan(options_for(corpus, tmp_path), "y").ids_digest, *others}) == 5

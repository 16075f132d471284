"""What a run records of its place in the data, and what an audit makes of it, on real runs with restarts."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from data_pipeline.audit.batch import StepReader
from data_pipeline.audit.lineage import trace
from data_pipeline.audit.positions import POSITIONS, read_positions
from data_pipeline.loader.batches import Batches
from launch.megaxf import main
from megaxf.config_data import portion_at, samples_before
from megaxf.train.guards import Outcome
from megaxf.train.metrics import last_step
from megaxf.train.sources import open_batches
from tests.data_pipeline.kit import EOD, build, byte_tokenizer, write_jsonl
from tests.train.kit import start, tiny_run

PHASES = [
    {"from_step": 4, "global_batch_size": 8},
    {"from_step": 7, "sequence_length": 32, "global_batch_size": 4, "shares": {"a": 1, "b": 3}},
    {"from_step": 10, "sequence_length": 8},
]


def text(source: str, number: int) -> str:
    """A document that says which one it is, all along."""
    return f"{source}{number};" * (3 + number % 11)


@pytest.fixture
def make(tmp_path):
    """A run of 12 steps over four phases on two sources."""
    tokenizer = byte_tokenizer(tmp_path / "bytes")
    for name in "ab":
        texts = write_jsonl(tmp_path / f"{name}.jsonl", [text(name, k) for k in range(60)])
        build(texts, output=tmp_path / name, tokenizer=tokenizer, shard_tokens=500)

    def run(steps=12, packing="concat", **data):
        sources = {name: {"folder": str(tmp_path / name)} for name in "ab"}
        settings = {
            "sources": sources, "sequence_length": 16, "phases": PHASES, "packing": packing, **data
        }  # fmt: skip
        changes = {"model": {"vocab_size": 257}, "checkpoint": {"every": 2, "keep_last": 20, "asynchronous": False}}
        return tiny_run(tmp_path, data=settings, train={"steps": steps}, **changes)

    return run


def kill(run) -> None:
    """As if the process had died before it could say so, in the middle of a line."""
    path = Path(run.run_folder) / POSITIONS
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1])["kind"] == "end"
    path.write_text("\n".join([*lines[:-1], lines[-1][:30]]))


def crash_at(monkeypatch, sample: int) -> None:
    plain = Batches.rows

    def rows(self, first, count, out=None):
        if first >= sample:
            raise RuntimeError("the machine is gone")
        return plain(self, first, count, out)

    monkeypatch.setattr(Batches, "rows", rows)


def restarted(make, monkeypatch, run_on):
    """Stopped after step 3, crashed after step 5 (with a checkpoint of step 4), went on with 2 ranks and a skip."""
    assert start(make(), stop_after=3)[0] == Outcome.STOPPED
    with monkeypatch.context() as patch:
        crash_at(patch, samples_before(make(), 6))
        with pytest.raises(RuntimeError, match="the machine is gone"):
            start(make())
    kill(make())
    assert last_step(Path(make().run_folder) / "metrics.jsonl") == 5
    final = make(skip_steps=[[6, 6], [8, 8]])
    assert [outcome for outcome, _ in run_on(2, start, final)] == [Outcome.DONE] * 2
    return {step: make() if step <= 4 else final for step in range(1, 13)}


def test_restarts_ranks_phases_skips_and_a_crash(make, monkeypatch, run_on, capsys):
    runs = restarted(make, monkeypatch, run_on)
    folder = runs[12].run_folder
    assert main(["data", "coverage", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["whole"] and not found["problems"]
    parts = [(one["first_step"], one["last_step"], one["data_ranks"], one["end_recorded"]) for one in found["starts"]]
    assert parts == [(1, 3, 1, True), (4, 4, 1, False), (5, 12, 2, True)]
    assert [(one["first_step"], one["last_step"]) for one in found["lost"]] == [(5, 5)]
    # Step 6 read 8 samples from 28 on; step 8 of a run without these 4 samples from 40 + 8 on.
    assert found["skipped"] == [[28, 35], [48, 51]]
    assert any("skips were [] and are [(28, 35), (48, 51)]" in one for one in found["changes"])
    assert found["samples"] == samples_before(runs[12], 13)
    tokens, seen = Counter(), Counter()
    for step, run in runs.items():
        batches, portion = open_batches(run, "train"), portion_at(run, step)
        samples = batches.samples(samples_before(run, step), portion.global_batch_size)
        for source, epoch, row in zip(*map(list, samples[:3]), strict=True):
            tokens[batches.names[source]] += portion.sequence_length
            first = int(row) * portion.sequence_length
            for block in range(first // 8, (first + portion.sequence_length) // 8):
                seen[int(source), int(epoch), block] += 1
    assert {name: one["tokens"] for name, one in found["sources"].items()} == dict(tokens)
    assert set(seen.values()) == {1}, "no 8 tokens of an epoch twice, in rows of whatever length"
    assert main(["data", "coverage", folder]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "steps 5 to 5 were lost, and made again" in page and "samples 28 to 35 were skipped, as declared" in page
    assert f"all {found['samples']} samples were read once and in order" in page
    every_document_is_what_the_rows_say(runs)
    parts = [trace(read_positions(Path(folder) / POSITIONS)).part_of(step).session.data_ranks for step in (4, 5, 13)]
    assert parts == [1, 2, 2]


def every_document_is_what_the_rows_say(runs):
    lineage = trace(read_positions(Path(runs[12].run_folder) / POSITIONS))
    folders = {name: source.folder for name, source in runs[12].data.sources.items()}
    for step, run in runs.items():
        portion, ranks = portion_at(run, step), lineage.part_of(step).session.data_ranks
        rows = open_batches(run, "train").rows(samples_before(run, step), portion.global_batch_size)
        held = {}
        for one in StepReader(lineage.part_of(step), folders).passages(step):
            assert 0 <= one.rank < ranks
            row = one.rank * portion.global_batch_size // ranks + one.row
            held.setdefault(row, []).append((one.column, one.column + one.tokens))
            whole = [*text(one.source, one.document).encode(), EOD]
            assert one.document_tokens == len(whole)
            assert one.origin.endswith(f"{one.source}.jsonl:{one.document + 1}")
            ids = [*rows.tokens[row].tolist(), int(rows.labels[row, -1])]
            held_ids = ids[one.column : one.column + one.tokens]
            assert held_ids == whole[one.offset : one.offset + one.tokens]
        assert len(held) == portion.global_batch_size
        for spans in held.values():
            assert spans[0][0] == 0 and all(end == begin for (_, end), (begin, _) in pairwise(spans))
            assert spans[-1][1] == portion.sequence_length + 1 or run.data.packing != "concat"


def test_documents_of_packed_rows(make):
    run = make(packing="best_fit")
    assert start(run)[0] == Outcome.DONE
    every_document_is_what_the_rows_say(dict.fromkeys(range(1, 13), run))


def test_the_page_of_a_batch(make, capsys):
    run = make(steps=3, phases=[])
    assert start(run)[0] == Outcome.DONE
    assert main(["data", "batch", run.run_folder, "1", "--json", "--world-size", "2", "--rank", "1"]) == 0
    passages = json.loads(capsys.readouterr().out)["passages"]
    assert {(one["rank"], one["row"]) for one in passages} == {(1, 0), (1, 1)}
    for one in passages:
        assert one["text"] == text(one["source"], one["document"])[one["offset"] :][: one["tokens"]][:24]
    assert main(["data", "batch", run.run_folder, "1"]) == 0
    page = capsys.readouterr().out
    lines = [line.split() for line in page.splitlines()[1:]]
    assert {(int(line[0]), int(line[1])) for line in lines} == {(0, row) for row in range(4)}
    for one in passages:
        assert any(
            line[2:6] == [str(one["column"]), one["source"], str(one["document"]), one["origin"]] for line in lines
        )
    assert main(["data", "batch", run.run_folder, "1", "--text"]) == 0
    assert passages[-1]["text"] in capsys.readouterr().out
    assert main(["data", "batch", run.run_folder, "4"]) == 0
    assert "step 4 is not made yet" in capsys.readouterr().out


def test_what_a_batch_page_cannot_say(make, capsys, tmp_path):
    run = make(steps=3, phases=[])
    start(run)
    for words, said in {
        ("0",): "STEP = 0 is not a step",
        ("1", "--world-size", "3"): "has no equal share of global_batch_size = 4",
        ("1", "--rank", "1"): "rank 1 of 1 has no equal share",
        ("1", "--world-size", "0"): "",
    }.items():
        assert main(["data", "batch", run.run_folder, *words]) == (2 if said else 0)
        assert said in capsys.readouterr().err
    build(str(tmp_path / "b.jsonl"), output=tmp_path / "a", tokenizer=tmp_path / "bytes", overwrite=True)
    assert main(["data", "batch", run.run_folder, "1"]) == 2
    assert "holds other data than the run has read" in capsys.readouterr().err
    assert main(["data", "coverage", str(tmp_path)]) == 2
    assert f"{tmp_path}/positions.jsonl: is missing" in capsys.readouterr().err


def test_every_start_checkpoint_and_end_has_a_line(make):
    run = make(steps=4, phases=[])
    start(run, stop_after=3)
    start(run)
    lines = [json.loads(line) for line in (Path(run.run_folder) / POSITIONS).read_text().splitlines()]
    assert [(line["kind"], line["step"], line["samples"]) for line in lines] == [
        ("start", 0, 0), ("checkpoint", 2, 8), ("checkpoint", 3, 12), ("end", 3, 12),
        ("start", 3, 12), ("checkpoint", 4, 16), ("end", 4, 16),
    ]  # fmt: skip
    state = open_batches(run, "train").state(12)
    assert lines[4]["state"] == json.loads(json.dumps(state)) and lines[4]["reached"] == 3
    assert lines[4]["data_ranks"] == 1 and lines[4]["global_batch_size"] == 4

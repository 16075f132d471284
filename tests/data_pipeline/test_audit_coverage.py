"""Coverage from recorded positions: against an enumeration of every sample, and with records that are not true."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.audit.batch import StepReader
from data_pipeline.audit.coverage import as_json, cover
from data_pipeline.audit.lineage import trace
from data_pipeline.audit.positions import Point, Session, read_positions
from data_pipeline.errors import DataError
from data_pipeline.order.phases import Phase, Phases
from data_pipeline.order.skips import Skips

UNITS = {"a": 90, "b": 4000}
PHASES = [(0, 4, 8, (1, 1)), (5, 8, 8, (1, 1)), (9, 4, 16, (1, 3))]
"""(first step, batch size, length, weights): samples 20 and 52 are the first of the second and the third."""


def phases_of(skips=(), phases=PHASES) -> Phases:
    longest = max(length for _, _, length, _ in phases)
    return Phases([Phase(*phase) for phase in phases], longest, list(UNITS.values())[: len(phases[0][3])], Skips(skips))


def session(step: int, *more: int, skips=(), phases=PHASES, ranks=1, reached=None, digest="d", samples=None, **state):
    """A start at a step, with points at this step and more of them, all as the phases have it."""
    order = phases_of(skips, phases)
    points = [Point(one, order.step(one).first_sample) for one in (step, *more)]
    if samples is not None:
        points[0] = Point(step, samples)
    firsts = [order.step(first).first_sample for first, *_ in phases]
    known = {
        "samples": points[0].samples,
        "split": "train",
        "seed": 1,
        "longest": order.longest,
        "isolate_documents": False,
        "lanes": None,
        "phases": [[a, first, b, c, list(d)] for (a, b, c, d), first in zip(phases, firsts, strict=True)],
        "skips": [list(one) for one in skips],
        "sources": {"a": [digest, "concat, train on all"], "b": ["e", "concat, train on all"]},
    }
    return Session(f"start at {step}", ranks, 4, dict(UNITS), known | state, reached, points)


def enumerate_lineage(lineage):
    """Tokens of each source and how often each row was read, sample by sample."""
    tokens, seen = Counter(), Counter()
    for part in lineage.parts:
        state = part.session.state
        order = phases_of(map(tuple, state["skips"]), [(a, b, c, tuple(d)) for a, _, b, c, d in state["phases"]])
        for sample in range(part.first.samples, part.end.samples):
            stretch, _ = order.stretch(sample, 1)
            source, index = (int(one[0]) for one in order.locate(stretch, np.array([sample])))
            tokens["ab"[source]] += stretch.sequence_length
            for piece in range(stretch.sequence_length // 8):
                seen[source, (index * stretch.sequence_length // 8) + piece] += 1
    return tokens, seen


def skipped_by(lineage):
    """What the last start that read anything skips of the samples up to the last one that it read."""
    part = [one for one in lineage.parts if one.first != one.end][-1:]
    if not part:
        return []
    skips = part[0].session.state["skips"]
    last = int(Skips(skips).apply(np.array([part[0].end.samples - 1]))[0])
    return [(first, end + 1) for first, end in skips if first < last]


def test_random_restarts_with_skips_read_what_an_enumeration_says():
    rng = np.random.default_rng(0)
    for _ in range(60):
        sessions, step, skips = [], 0, []
        for _ in range(rng.integers(1, 6)):
            more = sorted({int(one) for one in rng.integers(step, step + 12, 3)} - {step})
            sessions.append(session(step, *more, skips=skips))
            points = sessions[-1].points
            step = points[int(rng.integers(len(points)))].step
            if rng.random() < 0.5:
                # Samples that no step up to here has read can still be skipped.
                position = phases_of(skips).step(step).first_sample
                first = int(Skips(skips).apply(np.array([position - 1]))[0]) + 1 if position else 0
                first = max([first, *(last + 1 for _, last in skips)]) + int(rng.integers(0, 9))
                skips = [*skips, (first, first + int(rng.integers(0, 20)))]
        found, lineage = cover(sessions), trace(sessions)
        assert found.problems == []
        tokens, seen = enumerate_lineage(lineage)
        assert {name: count for name, count in found.tokens.items() if count} == dict(tokens)
        assert found.samples == lineage.parts[-1].end.samples
        assert max(seen.values(), default=1) == 1
        assert found.skipped == skipped_by(lineage)
        assert as_json(found)["whole"]


def test_what_was_lost_is_named_and_made_again():
    found = cover([session(0, 4, 7), session(4, 6, reached=9), session(6, 10, reached=8, ranks=3), session(10)])
    assert found.problems == []
    assert [lost[:2] for lost in found.lineage.lost] == [(5, 9), (7, 8)]
    parts = [(part.first.step, part.end.step, part.session.data_ranks) for part in found.lineage.parts]
    assert parts == [(0, 4, 1), (4, 6, 1), (6, 10, 3), (10, 10, 1)]


def test_a_run_that_began_anew_has_one_past():
    found = cover([session(0, 4), session(0, 6, reached=5)])
    assert [lost[:2] for lost in found.lineage.lost] == [(1, 5)] and len(found.lineage.parts) == 1
    assert (found.samples, found.problems) == (28, [])


def test_epochs_and_what_was_passed_over():
    found = cover([session(0, 4), session(4, 60, skips=[(16, 19)])])
    tokens, _ = enumerate_lineage(found.lineage)
    assert found.tokens == tokens
    # Two rows of each source are skipped at first, and the change of length costs up to a group, of 1 or 62 units.
    assert found.passed_over["a"] - 2 * 8 in (0, 8)
    assert found.epochs["a"] == (tokens["a"] + found.passed_over["a"]) / (90 * 16)
    assert 2 * 8 <= found.passed_over["b"] <= 2 * 8 + 62 * 16


OTHER = [(0, 4, 8, (1, 2)), *PHASES[1:]]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (session(4, 8, samples=20), "samples 16 to 19 were read by no step, and no skip declares it"),
        (session(4, 8, samples=12), "samples 12 to 15 were read and come again in the start of start at 4"),
        (session(6, 8), "goes on after step 6, and nothing is recorded of the steps from 5 to there"),
        (session(6, 8), "samples 16 to 27 were read by no step"),
        (session(4, 8, digest="f"), "from step 5 on, source a holds other data: its manifest was d and is f"),
        (session(4, 8, seed=2), "from step 5 on, seed was 1 and is 2: everything is drawn anew"),
        (session(4, 8, lanes=[2, 2, 4]), "from step 5 on, lanes was None and is [2, 2, 4]"),
        (session(4, 8, skips=[(3, 6)]), "samples 16 to 19 were read by no step"),
        (session(4, 8, phases=OTHER), "source b: 24 tokens are passed over in the start of start at 4, from step 5"),
        (session(4, 8, phases=OTHER), "source a: 24 tokens come again"),
    ],
)  # fmt: skip
def test_what_was_not_read_once_is_named(second, said):
    found = cover([session(0, 4), second])
    assert any(said in problem for problem in found.problems), found.problems
    assert not as_json(found)["whole"]
    assert not any("other data" in change for change in found.changes), "said once"


def test_later_phases_may_change_even_right_where_a_start_goes_on():
    found = cover([session(0, 4), session(4, 8, phases=[PHASES[0], (4, 4, 16, (1, 3))])])
    assert found.problems == [] and "none of which was read yet" in found.changes[0]


def test_a_skip_that_is_taken_back_brings_samples_again():
    found = cover([session(0, 4, skips=[(8, 11)]), session(4, 8)])
    assert any("samples 16 to 19 were read and come again" in problem for problem in found.problems)


def test_a_source_that_joins_is_said_and_other_targets_are_no_fault():
    later = session(4, 8)
    later.state["sources"]["b"] = ["e", "concat, train on none"]
    found = cover([session(0, 4), later])
    assert found.problems == [] and "has rows made otherwise" in found.changes[0]
    later.state["sources"]["b"] = ["e", "best_fit, train on all"]
    assert "has rows made otherwise: concat before, best_fit now" in cover([session(0, 4), later]).problems[0]


def test_text_that_is_tokenised_while_training():
    """Nobody knows its length, and its documents are in no shard."""
    one = session(0, 4, phases=[(0, 1, 8, (1,))])
    one.rows.clear()
    one.rows["text"] = 0
    one.state["sources"] = {"text": ["d", "online, in order"]}
    one.points[1] = Point(4, 16)
    found = cover([one])
    assert (found.problems, dict(found.tokens), found.epochs) == ([], {"text": 128}, {})
    with pytest.raises(DataError, match="text was tokenised while training; documents can be told of prepared shards"):
        StepReader(trace([one]).part_of(1), {})


def test_a_record_that_contradicts_its_batch_sizes():
    forged = session(0, 4, 7)
    forged.points[1] = Point(4, 15)
    found = cover([forged])
    assert found.problems == [
        "the record of the start of start at 0 has 15 samples read after step 4; its batch sizes make that 16"
    ]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def start_line(one: Session) -> dict[str, object]:
    known = {name: value for name, value in vars(one).items() if name not in ("points", "ended")}
    return {"kind": "start", **one.points[0]._asdict(), **known}


def test_a_torn_last_line_is_passed_over_and_no_other(tmp_path):
    first, second = session(0, 4), session(4)
    point = {"kind": "checkpoint", "time": "t", "step": 4, "samples": 16}
    path = write(tmp_path / "positions.jsonl", start_line(first), point, start_line(second), '{"kind": "checkp')
    assert read_positions(path) == [first, second]
    write(path, start_line(first), '{"kind": "checkp\n', point)
    with pytest.raises(DataError, match=r"positions.jsonl:2: is no line of such a record"):
        read_positions(path)
    write(path, point)
    with pytest.raises(DataError, match=r"positions.jsonl:1: is no line"):
        read_positions(path)
    with pytest.raises(DataError, match="tells of no start"):
        read_positions(write(path, '{"kind": "st'))
    with pytest.raises(DataError, match=r"is missing: name the folder of a run"):
        read_positions(tmp_path / "none")

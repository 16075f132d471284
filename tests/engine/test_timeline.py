"""The clock against known bubbles, and each schedule's instructions against what the mathematics asks for."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from megaxf.engine import timeline as module
from megaxf.engine.pipeline_plan import interleaved_plan
from megaxf.engine.timeline import instructions, simulate
from megaxf.engine.timeline_report import draw, page, values
from megaxf.plan.stages import SCHEDULES, parts_of_stage

SIZES = [(2, 2), (2, 8), (3, 6), (4, 8), (4, 12), (5, 10), (8, 16)]


@pytest.mark.parametrize(("stages", "count"), [*SIZES, (4, 1), (4, 2), (4, 3)])
def test_1f1b_has_the_bubble_of_the_formula(stages, count):
    timeline = simulate("1f1b", stages, count)
    assert timeline.bubble == pytest.approx((stages - 1) / (count + stages - 1))
    assert timeline.bubble == pytest.approx(timeline.one_part_bubble)
    assert timeline.peak_in_flight == [min(stages - stage, count) for stage in range(stages)] or stages > count


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_interleaving_halves_what_is_waited(stages, count):
    """(p - 1) / v of m + (p - 1) / v, with v = 2 parts a stage (arXiv 2104.04473, section 2.2)."""
    assert simulate("interleaved", stages, count).bubble == pytest.approx((stages - 1) / (2 * count + stages - 1))


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (2, 8), (3, 9), (4, 8), (8, 16)])
def test_dualpipev_without_split_gradients_waits_less_than_1f1b(stages, count):
    timeline = simulate("dualpipev", stages, count)
    assert timeline.bubble < timeline.one_part_bubble
    assert timeline.peak_in_flight == [stages + 0.5] * stages


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (2, 6), (3, 6), (4, 8), (8, 24)])
def test_every_pass_happens_once_and_after_what_it_takes(schedule, stages, count):
    timeline = simulate(schedule, stages, count, forward=1.0, backward=1.7)
    last = sum(len(parts_of_stage(schedule, stages, stage)) for stage in range(stages)) - 1
    ends = {(done.backward, done.part, done.micro_batch): done.end for done in timeline.passes}
    assert len(ends) == len(timeline.passes) == 2 * (last + 1) * count
    for done in timeline.passes:
        if done.backward:
            needed = (done.part != last, done.part + (done.part != last), done.micro_batch)
        elif done.part:
            needed = (False, done.part - 1, done.micro_batch)
        else:
            continue
        assert ends[needed] <= done.start + 1e-9
    for stage in range(stages):
        own = sorted(done[4:] for done in timeline.passes if done.stage == stage)
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(own))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (3, 6), (4, 8)])
def test_a_part_takes_the_micro_batches_in_order(schedule, stages, count):
    """What the engine builds on: the n-th call of a part is for the n-th micro-batch, forward and backward."""
    for commands in instructions(schedule, stages, count):
        slots = 1 + max(command.buffer_id for command in commands if hasattr(command, "buffer_id"))
        for name in ("ForwardPass", "BackwardPass"):
            for phase in (0, 1):
                own = [c.buffer_id for c in commands if c.name == name and getattr(c, "phase", 0) == phase]
                slots = 2 * count if schedule != "1f1b" else slots
                assert own == [(phase * count + batch) % slots for batch in range(len(own))]
                assert len(own) in (0, count)


def test_stages_that_wait_for_each_other_are_found(monkeypatch):
    crossed = [[SimpleNamespace(name="RecvGrad")], [SimpleNamespace(name="RecvActivation")]]
    monkeypatch.setattr(module, "instructions", lambda *arguments: crossed)
    with pytest.raises(RuntimeError, match=r"1f1b: stages \[0, 1\] wait for each other"):
        simulate("1f1b", 2, 1)


def test_schedules_refuse_counts_that_they_cannot_run():
    with pytest.raises(ValueError, match="at least 2 \\* 4 micro-batches, got 7"):
        simulate("dualpipev", 4, 7)
    with pytest.raises(ValueError, match="multiple of 4 micro-batches, got 6"):
        simulate("interleaved", 4, 6)


def test_costs_scale_time_and_not_the_plan():
    plan = interleaved_plan(4, 8)
    assert interleaved_plan(4, 8) is plan
    slow = simulate("1f1b", 4, 8, forward=3.0, backward=6.0)
    assert slow.length == pytest.approx(3 * simulate("1f1b", 4, 8).length)


def test_table_numbers_and_picture(tmp_path):
    timelines = [simulate(schedule, 4, 8) for schedule in SCHEDULES]
    assert values(timelines[0])["bubble"] == pytest.approx(3 / 11)
    lines = page(timelines).splitlines()
    assert "(p - 1) / (m + p - 1) = 27.3%" in lines[0]
    assert lines[3].split() == ["1f1b", "33", "27.3%", "4", "3", "2", "1"]
    draw(timelines, tmp_path / "all.png")
    draw(timelines[:1], tmp_path / "one.png")
    sizes = [picture_size(tmp_path / name) for name in ("all.png", "one.png")]
    assert sizes[0][0] > sizes[1][0] > 1000
    assert sizes[0][1] > 2 * sizes[1][1]


def picture_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])

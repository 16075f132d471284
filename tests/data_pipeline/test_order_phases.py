"""Phases: which samples a step has, and where each source goes on when weights or the length of rows change."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.order.blend import Blend
from data_pipeline.order.cuts import CutOrder, WholeOrder, carried_over, group_units
from data_pipeline.order.phases import Phase, Phases
from data_pipeline.order.skips import Skips


def phases(*found: Phase, units=(1000, 1000), skips=(), longest: int = 0) -> Phases:
    longest = longest or max(phase.sequence_length for phase in found)
    return Phases(found, longest, units, Skips(skips))


def read(run: Phases, first: int, count: int) -> list[tuple[int, int]]:
    stretch, _ = run.stretch(first, count)
    source, index = run.locate(stretch, np.arange(first, first + count))
    return list(zip(source.tolist(), index.tolist(), strict=True))


def test_steps_follow_one_another_without_gap():
    run = phases(Phase(0, 4, 8, (1, 1)), Phase(3, 6, 8, (1, 1)), Phase(5, 10, 8, (1, 3)))
    steps = [run.step(number) for number in range(8)]
    assert [step.samples for step in steps] == [4, 4, 4, 6, 6, 10, 10, 10]
    assert [step.first_sample for step in steps] == [0, 4, 8, 12, 18, 24, 34, 44]
    assert [step.phase for step in steps] == [0, 0, 0, 1, 1, 2, 2, 2]


def test_the_batch_size_alone_changes_no_sample():
    ramp = phases(Phase(0, 4, 8, (1, 2)), Phase(10, 6, 8, (1, 2)), Phase(20, 48, 8, (1, 2)))
    plain = phases(Phase(0, 12, 8, (1, 2)))
    assert len(ramp.stretches) == 1
    assert read(ramp, 0, 1000) == read(plain, 0, 1000)


def test_a_new_mix_goes_on_where_each_source_stopped():
    run = phases(Phase(0, 10, 8, (1, 3)), Phase(7, 10, 8, (4, 1)), Phase(9, 10, 8, (0, 1)))
    found = [pair for first, count in ((0, 70), (70, 20), (90, 50)) for pair in read(run, first, count)]
    for source in (0, 1):
        index = [row for number, row in found if number == source]
        assert index == list(range(len(index)))
    counts = [[number for number, _ in found[a:b]].count(0) for a, b in ((0, 70), (70, 90), (90, 140))]
    assert counts == [Blend([1, 3]).counts(70)[0], 16, 0]
    assert [given.tolist() for _, given in run.use(100)] == [[counts[0], 70 - counts[0]], [16, 4], [0, 10]]


def test_later_phases_change_nothing_before_them():
    plain = phases(Phase(0, 10, 8, (1, 3)), longest=16)
    annealed = phases(Phase(0, 10, 8, (1, 3)), Phase(50, 5, 16, (1, 0)))
    assert read(plain, 0, 500) == read(annealed, 0, 500)
    assert [one.parts for one in annealed.stretches] == [2, 1]


@pytest.mark.parametrize("changes", [(0, 40, 90, 200), (0, 7, 300, 301), (0, 1, 2, 3)])
def test_no_token_of_an_epoch_is_trained_on_twice_whatever_lengths_follow(changes):
    """Each quarter of a unit is counted; at each change at most one group of units is lost."""
    units = 640
    run = phases(*[Phase(step, 9, S, (1,)) for step, S in zip(changes, (8, 32, 16, 8), strict=True)], units=[units])
    whole = WholeOrder(units, 5, "web")
    seen = np.zeros((12, units * 4), dtype=int)
    begins = [stretch.first_sample for stretch in run.stretches]
    for stretch, end in zip(run.stretches, [*begins[1:], begins[-1] + 6000], strict=True):
        order = CutOrder(whole, stretch.parts, 5, "web")
        _, index = run.locate(stretch, np.arange(stretch.first_sample, end))
        epoch, row = np.divmod(index, order.rows)
        quarters = 4 // stretch.parts
        for turn in np.unique(epoch):
            rows = order.locate(int(turn), row[epoch == turn])
            np.add.at(seen[turn], rows[:, None] * quarters + np.arange(quarters), 1)
    assert seen.max() == 1
    lost = seen[: epoch[-1]].size - seen[: epoch[-1]].sum()
    assert lost <= 3 * group_units(units) * 4
    # Epochs within one stretch are whole.
    assert seen[epoch[0] + 1 : epoch[-1]].all() and epoch[-1] > epoch[0] + 1


def test_every_row_of_every_length_comes_once_in_an_epoch():
    for units in (1, 5, 63, 64, 200, 700):
        whole = WholeOrder(units, 1, "web")
        for parts in (1, 2, 3, 16):
            order = CutOrder(whole, parts, 1, "web")
            assert order.rows == units * parts
            rows = order.locate(2, np.arange(order.rows))
            assert np.array_equal(np.sort(rows), np.arange(order.rows))
            # A prefix of whole groups takes whole units.
            prefix = rows[: group_units(units) * parts]
            assert len(np.unique(prefix // parts)) * parts == len(prefix)


def test_parts_of_a_unit_do_not_come_one_after_the_other():
    order = CutOrder(WholeOrder(64 * 1024, 1, "web"), 16, 1, "web")
    unit = order.locate(0, np.arange(16 * 1024)) // 16
    # In a drawn order neighbours share a unit with probability 15 / 16,384: 15 times here.
    assert (unit[1:] == unit[:-1]).sum() < 40


def test_a_change_of_length_loses_at_most_a_group():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        units = int(rng.integers(1, 300_000))
        old, new = (int(x) for x in rng.integers(1, 9, 2))
        rows = int(rng.integers(0, 4 * units * old))
        begun = carried_over(rows, units, old, new)
        assert begun % new == 0
        lost = begun // new * old - rows
        assert 0 <= lost < group_units(units) * old
        epoch, within = divmod(begun // new, units)
        assert within % group_units(units) == 0 and epoch in (rows // (units * old), rows // (units * old) + 1)


def test_skipped_samples_are_passed_over_and_steps_stay_where_they_are():
    plan = (Phase(0, 10, 8, (1, 1)), Phase(5, 10, 8, (1, 4)))
    run = phases(*plan, skips=[(20, 26), (60, 69)])
    every = read(phases(plan[0]), 0, 100)
    assert read(run, 0, 20) == every[:20]
    assert read(run, 20, 30) == every[27:57]
    assert run.step(5).first_sample == 50
    # The second mix begins at step 5, behind 57 samples; of its own samples those from 60 to 69 are left out.
    mixed = Blend([1, 4])
    source, index = mixed.locate(np.array([0, 1, 2, 13, 14]))
    before = np.asarray(Blend([1, 1]).counts(57))
    assert read(run, 50, 5) == list(zip(source.tolist(), (index + before[source]).tolist(), strict=True))


def test_what_the_first_steps_of_a_phase_or_of_the_run_read_can_be_skipped():
    plan = (Phase(0, 10, 8, (1, 1)), Phase(5, 10, 8, (1, 4)))
    plain = phases(*plan)
    run = phases(*plan, skips=[(0, 9), (60, 79)])
    assert read(run, 0, 50) == read(phases(plan[0]), 10, 50)
    assert read(phases(*plan, skips=[(50, 69)]), 50, 40) == read(plain, 70, 40)


def test_samples_of_two_stretches_are_not_one_batch():
    run = phases(Phase(0, 10, 8, (1, 1)), Phase(5, 10, 4, (1, 1)))
    assert [run.stretch(first, 10)[0].sequence_length for first in (40, 50)] == [8, 4]
    assert [run.stretch(first, 10)[1] for first in (40, 50)] == [50, None]
    with pytest.raises(DataError, match="samples 45 to 54 lie in two phases, the second of which begins at sample 50"):
        run.stretch(45, 10)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([Phase(1, 4, 8, (1,))], "the first phase must begin at step 0"),
        ([Phase(0, 4, 8, (1,)), Phase(0, 4, 8, (1,))], r"phases\[1\].first_step = 0 must be above 0"),
        (
            [Phase(0, 4, 8, (1,)), Phase(2, 4, 12, (1,))],
            r"phases\[0\].sequence_length = 8 does not divide the longest, 12",
        ),
        ([Phase(0, 0, 8, (1,))], r"phases\[0\].global_batch_size = 0 must be at least 1"),
        ([Phase(0, 4, 8, (1,)), Phase(2, 4, 8, (1, 2))], r"phases\[1\] has 2 weights for 1 sources"),
    ],
)
def test_phases_that_do_not_fit_are_refused(found, message):
    with pytest.raises(DataError, match=message):
        phases(*found, units=[10])

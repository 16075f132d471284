"""Phases and skipped steps: what a step reads is a function of its number, however often the run is stopped."""

import json
from pathlib import Path

import numpy as np
import pytest

from megaxf.config_data import portion_at, samples_before, tokens_before
from megaxf.config_errors import ConfigError
from megaxf.train.guards import Outcome
from megaxf.train.resolved import page, resolve
from megaxf.train.sources import open_batches, skipped_samples
from tests.train.kit import assert_same_end, column, start, tiny_run, write_data

PHASES = [
    {"from_step": 4, "global_batch_size": 8},
    {"from_step": 7, "sequence_length": 32, "global_batch_size": 4, "shares": {"a": 1, "b": 3}},
    {"from_step": 10, "sequence_length": 8},
]


@pytest.fixture
def make(tmp_path):
    """A run of 12 steps over four phases on two sources."""
    for seed, name in enumerate("ab"):
        write_data(tmp_path / name, rows=64, seed=seed)

    def run(folder="run", phases=PHASES, **data):
        sources = {name: {"folder": str(tmp_path / name)} for name in "ab"}
        settings = {"sources": sources, "sequence_length": 16, "phases": phases, **data}
        return tiny_run(tmp_path, data=settings, run_folder=str(tmp_path / folder))

    return run


def test_what_a_step_takes(make):
    run = make()
    assert [portion_at(run, step)[1:] for step in (1, 3, 4, 6, 7, 9, 10, 12)] == [
        (16, 4), (16, 4), (16, 8), (16, 8), (32, 4), (32, 4), (8, 4), (8, 4)
    ]  # fmt: skip
    assert [samples_before(run, step) for step in (1, 4, 5, 7, 10, 13)] == [0, 12, 20, 36, 48, 60]
    assert tokens_before(run, 13) == 3 * 4 * 16 + 3 * 8 * 16 + 3 * 4 * 32 + 3 * 4 * 8


def test_a_run_through_phases_that_was_stopped_is_the_one_that_was_not(make):
    whole, parts = make("whole"), make("parts")
    assert start(whole)[0] == Outcome.DONE
    for steps in (3, 2, 2, 3):
        assert start(parts, stop_after=steps)[0] == Outcome.STOPPED
    assert start(parts)[0] == Outcome.DONE
    assert_same_end(whole, parts)
    tokens = [tokens_before(whole, step + 1) for step in range(1, 13)]
    assert column(whole, "tokens") == column(parts, "tokens") == tokens
    of_sources = column(whole, "source_losses")
    assert of_sources == column(parts, "source_losses")
    assert {name for losses in of_sources for name in losses} == {"a", "b"}
    for loss, losses in zip(column(whole, "loss"), of_sources, strict=True):
        assert min(losses.values()) - 1e-6 <= loss <= max(losses.values()) + 1e-6


def test_rows_of_a_phase_have_its_length_and_mixture(make):
    batches = open_batches(make(), "train")
    assert batches.rows(36, 4).tokens.shape == (4, 32)
    assert batches.rows(48, 4).tokens.shape == (4, 8)
    assert np.bincount(batches.samples(0, 12).source).tolist() == [6, 6]
    assert np.bincount(batches.samples(36, 12).source).tolist() == [3, 9]


def test_skipped_steps_leave_the_rest_of_the_order(make):
    plain = open_batches(make(), "train")
    run = make(skip_steps=[[2, 2], [5, 6]])
    # Steps 5 and 6 of a run without step 2's samples are samples 24 to 39 of the whole order.
    assert skipped_samples(run) == [(4, 7), (24, 39)]
    skipping = open_batches(run, "train")
    kept = [*range(4), *range(8, 24)]
    for position, sample in enumerate(kept[:12]):
        assert (skipping.rows(position, 1).tokens == plain.rows(sample, 1).tokens).all()


def test_a_phase_of_the_past_cannot_be_changed(make):
    start(make(), stop_after=5)
    changed = [{"from_step": 3, "global_batch_size": 8}, *PHASES[1:]]
    with pytest.raises(ConfigError, match=r"read 32 samples in the first 5 steps, and the run has read 28"):
        start(make(phases=changed))


def test_later_phases_may_be_changed_and_it_is_said(make):
    start(make(longest_sequence_length=32), stop_after=5)
    outcome, said = start(make(phases=PHASES[:1], longest_sequence_length=32))
    assert outcome == Outcome.DONE
    assert any("phases[2] was (from step 6: batch 4, length 32" in one and "none of which" in one for one in said)


def test_the_page_has_a_part_for_each_phase(make):
    found = resolve(make(), 1)
    assert found["problems"] == []
    assert found["tokens"] == tokens_before(make(), 13)
    assert [phase["from_step"] for phase in found["phases"]] == [1, 4, 7, 10]
    assert sum(source["share"] for source in found["sources"].values()) == pytest.approx(1)
    assert page(found).row_count > 0 and json.dumps(found)


@pytest.mark.parametrize(
    ("phases", "data", "said"),
    [
        ([{"from_step": 1, "global_batch_size": 8}], {}, "data.phases[0].from_step = 1: should be greater than 1"),
        ([{"from_step": 5}], {}, "data.phases[0]: nothing changes; give sequence_length"),
        ([PHASES[0], PHASES[0]], {}, "data.phases: begin at steps [4, 4]"),
        ([{"from_step": 50, "global_batch_size": 8}], {}, "data.phases[0].from_step = 50 is beyond train.steps = 12"),
        ([{"from_step": 5, "global_batch_size": 5}], {}, "data.phases[0]: train.micro_batch_size = 2 does not divide"),
        ([{"from_step": 5, "sequence_length": 24}], {}, "data.sequence_length = 16 does not divide the longest"),
        ([{"from_step": 5, "sequence_length": 64}], {}, "data.phases[0]: data.sequence_length = 64 is beyond"),
        ([{"from_step": 5, "shares": {"a": 1}}], {}, "data.phases[0].shares names a, and the sources are a, b"),
        ([{"from_step": 5, "shares": {"a": 0, "b": 0}}], {}, "data.phases[0].shares are all 0"),
        ([], {"skip_steps": [[5, 4]]}, "data.skip_steps: [5, 4] ends before it begins"),
        ([], {"skip_steps": [[5, 13]]}, "data.skip_steps has [5, 13], beyond train.steps = 12"),
        ([], {"cache": {"folder": "cache"}}, "data.cache.folder = cache has no effect"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(make, phases, data, said):
    with pytest.raises(ConfigError) as found:
        make(phases=phases, **data)
    assert said in str(found.value)


def test_sources_by_tokens_or_epochs(make, tmp_path):
    sources = {"a": {"folder": str(tmp_path / "a"), "epochs": 1}, "b": {"folder": str(tmp_path / "b"), "epochs": 3}}
    batches = open_batches(make(phases=[], sources=sources), "train")
    assert [use.epochs for use in batches.use(256)] == [1.0, 3.0]
    sources["b"] = {"folder": str(tmp_path / "b"), "tokens": 100.0}
    with pytest.raises(ConfigError, match=r"shared out by data.sources.a.epochs, data.sources.b.tokens; use weight"):
        make(phases=[], sources=sources)


def test_too_many_epochs(make, tmp_path):
    sources = {name: {"folder": str(tmp_path / name), "max_epochs": 0.2} for name in "ab"}
    found = resolve(make(phases=[], sources=sources), 1)
    assert any("source a would be read 0.38 times, and max_epochs allows 0.2" in one for one in found["warnings"])
    found = resolve(make(phases=[], sources=sources, over_max_epochs="refuse"), 1)
    assert "source b would be read 0.38 times" in found["problems"][0]
    assert Path(found["sources"]["a"]["folder"]).is_dir()

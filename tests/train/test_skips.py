"""fp16: a step whose scaled gradient overflows is passed over; where no smaller scale helps, the run ends."""

import math

import pytest

from megaxf.train import loop
from megaxf.train.guards import Outcome
from tests.train.kit import column, records, start


@pytest.fixture
def skip(monkeypatch):
    """`skip(steps, loss=...)`: the engine tells that these steps were skipped, with that loss or its own."""
    create = loop.create

    def skip(steps, loss=None):
        def skipping(*arguments):
            engine = create(*arguments)
            train_step, done = engine.train_step, [0]

            def step(*batch):
                result = train_step(*batch)
                done[0] += 1
                if done[0] not in steps:
                    return result
                return result._replace(skipped=True, grad_norm=math.inf, loss=result.loss if loss is None else loss)

            engine.train_step = step
            return engine

        monkeypatch.setattr(loop, "create", skipping)

    return skip


def test_a_skipped_step_is_told_and_counted(make, skip):
    skip({2, 3, 6})
    run = make(train={"steps": 7})
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert [sentence[:17] for sentence in said if "is skipped" in sentence] == [
        "step 2 is skipped",
        "step 3 is skipped",
        "step 6 is skipped",
    ]
    assert column(run, "skipped_steps") == [0, 1, 2, 2, 2, 3, 3]
    assert [norm is None for norm in column(run, "gradient_norm")] == [False, True, True, False, False, True, False]


def test_no_scale_helps_a_loss_that_is_not_finite(make, skip):
    skip({3}, loss=math.nan)
    run = make()
    assert start(run)[0] == Outcome.DIVERGED
    assert column(run, "step")[-1] == 3


def test_a_run_in_fp16_finds_its_scale(make, run_on):
    """Large weights make a gradient that is above 1, and so above fp16's 65504 with the first scale of 2^16."""
    run = make(
        train={"precision": "fp16"}, model={"initializer_range": 0.5}, engine={"zero_stage": 1}, evaluate={"every": 5}
    )
    ((outcome, said),) = run_on(1, start, run)
    assert outcome == Outcome.DONE
    skipped = column(run, "skipped_steps")
    assert 0 < skipped[0] <= skipped[-1] < 12
    assert sum("is skipped: a gradient overflowed in fp16" in sentence for sentence in said) == skipped[-1]
    assert len(records(run, "evaluation")) == 4

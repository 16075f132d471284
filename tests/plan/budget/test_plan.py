"""The plan against the law, the search and its own sums."""

import numpy as np
import pytest

from megaxf.plan.budget.helps import helps
from megaxf.plan.budget.plan import plan, suggested_batch
from megaxf.plan.budget.request import Means, Request
from megaxf.plan.budget.training import for_service
from megaxf.plan.errors import PlanError
from megaxf.plan.laws.inference import with_inference
from megaxf.plan.laws.optimum import Allocation, for_flops
from megaxf.plan.laws.table import law, surface
from megaxf.plan.parameters import count
from megaxf.plan.search.failures import Failures
from megaxf.plan.search.runfile import steps_for
from megaxf.plan.throughput.hardware import find


def means(gpu="h100", ranks=64, price=3.0, name="epoch", **more):
    return Means(find(gpu), ranks, price, law(name), **more)


def test_a_budget_is_spent_and_divided_as_the_law_says():
    found = plan(Request(dollars=50_000), means())
    assert found.dollars == pytest.approx(50_000, rel=0.01)
    best = for_flops(surface("epoch"), found.training.flops)
    assert found.training.parameters == pytest.approx(best.parameters, rel=0.05)
    assert found.training.loss == pytest.approx(best.loss, abs=2e-4)
    # By hand: tokens over the speed of all GPUs.
    seconds = found.training.tokens / float(found.first.step.tokens_per_second_per_gpu) / 64
    assert found.days == pytest.approx(seconds / 86_400 * found.means.failures.factor(64))
    assert found.gpu_hours == pytest.approx(found.days * 24 * 64)
    low, median, high = found.loss_interval
    assert low < median < high
    sample = surface("epoch")
    assert found.training.loss == pytest.approx(sample.loss(found.training.parameters, found.training.tokens))


@pytest.mark.parametrize("flops", [1e20, 1e22])
def test_compute_is_met_to_the_digit(flops):
    """Field report 96: N x D x 6 equals the budget to 1e-6, with the N of the shape that is proposed."""
    found = plan(Request(flops=flops), means())
    assert 6 * count(found.sizes).total * found.training.tokens == pytest.approx(flops, rel=1e-9)


def test_the_tightest_limit_counts():
    by_days = plan(Request(days=1, gpu_hours=1e6, dollars=1e9), means())
    assert by_days.limit.option == "--days = 1"
    assert by_days.days == pytest.approx(1, rel=0.01)
    assert plan(Request(gpu_hours=64 * 24), means()).training.tokens == pytest.approx(by_days.training.tokens)


def test_half_is_fixed_and_limits_give_the_rest():
    size = plan(Request(gpu_hours=2000, parameters=1e9), means())
    assert count(size.sizes).total == pytest.approx(1e9, rel=0.02)
    assert size.gpu_hours == pytest.approx(2000, rel=0.01)
    data = plan(Request(gpu_hours=2000, tokens=100e9), means())
    assert data.training.tokens == 100e9
    assert data.gpu_hours == pytest.approx(2000, rel=0.03)


@pytest.mark.parametrize(
    ("request_", "gpu", "ranks"),
    [
        (Request(days=0.5, tokens=100e9), "h100", 8),
        (Request(gpu_hours=10.4, tokens=35.8e9, vocab_size=32000), "a100", 32),
        (Request(gpu_hours=1.1), "a100", 512),
        (Request(dollars=2e5), "h100", 32),
        (Request(gpu_hours=500, parameters=2e9), "h100", 24),
        (Request(gpu_hours=3e4, unique_tokens=1e10), "h200", 64),
    ],
)
def test_a_limit_is_used_and_never_passed(request_, gpu, ranks):
    """Sizes and batches come in steps, between which rounds alternate; what is left must be less than a step of them.

    The time is that of the steps that a run file would have, too.
    """
    found = plan(request_, means(gpu, ranks))
    assert 0.97 * found.limit.gpu_hours < found.gpu_hours <= found.limit.gpu_hours * (1 + 1e-9)
    steps = steps_for(found.found.task, found.training.tokens)
    hours = steps * float(found.first.step.seconds) / 3600 * ranks * found.means.failures.factor(ranks)
    assert hours == pytest.approx(found.gpu_hours, rel=1e-4)
    assert found.loss_interval.low < found.training.loss < found.loss_interval.high


def test_both_are_fixed_and_the_time_follows():
    found = plan(Request(parameters=7e9, tokens=2e12), means(ranks=256))
    assert found.training.tokens == 2e12
    assert found.limit is None
    # LLaMA-7B took 82,432 A100-hours for 1.0T tokens (arXiv 2302.13971); an H100 is two to three times as fast.
    assert 82_432 * 2 / 3.5 < found.gpu_hours < 82_432 * 2 / 2


def test_serving_makes_models_smaller():
    """The training that is found is the optimum of arXiv 2401.00448 for its own loss."""
    form = surface("epoch")
    found = for_service(form, 1e23, 1e13)
    assert found.flops == pytest.approx(1e23)
    again = with_inference(form, found.loss, 1e13).best
    assert again.parameters == pytest.approx(found.parameters, rel=1e-3)
    assert found.parameters < 0.7 * for_flops(form, 1e23).parameters
    none = for_service(form, 1e23, 1.0)
    assert none.parameters == pytest.approx(for_flops(form, 1e23).parameters, rel=0.01)


def test_short_data_raises_the_loss():
    free, short = (plan(Request(flops=1e22, unique_tokens=unique), means()) for unique in (1e13, 1e10))
    assert free.training.loss == pytest.approx(plan(Request(flops=1e22), means()).training.loss)
    assert short.training.loss > free.training.loss + 0.05
    assert short.loss_interval.low > free.training.loss


def test_batches_divide_over_ranks():
    training = Allocation(7e9, 1.4e11, 2.2)
    for ranks in (8, 24, 40, 512):
        batch = suggested_batch(training, 4096, ranks)
        odd = ranks // (ranks & -ranks)
        assert batch % odd == 0
        assert np.log2(batch / odd) == int(np.log2(batch / odd))


def test_failures_take_their_share():
    calm, rough = (plan(Request(days=10), means(failures=Failures(gpu_hours=hours))) for hours in (1e7, 300.0))
    assert calm.days == pytest.approx(rough.days, rel=0.02)
    lost = rough.means.failures.factor(64) / calm.means.failures.factor(64)
    assert lost > 1.1
    assert calm.training.flops / rough.training.flops == pytest.approx(lost, rel=0.04)


def test_help_is_what_the_changed_run_would_take():
    found = plan(Request(dollars=300_000, parameters=30e9), means())
    told = {each.change: each.saved for each in helps(found)}
    more = plan(
        Request(parameters=30e9, tokens=found.training.tokens, compile=True, batch=found.found.task.global_batch_size),
        means(),
    )
    assert told["--compile"] == pytest.approx(1 - more.days / found.days, rel=1e-6)
    assert list(told.values()) == sorted(told.values(), reverse=True)
    assert 0.3 < told["twice the GPUs"] < 0.52


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(), "nothing is given to plan with"),
        (Request(flops=1e20, parameters=1e9, tokens=1e9), "leave one of them out"),
        (Request(days=-1), "--days = -1 is not a number above 0"),
        (Request(flops=1e20, inference_tokens=1e12, unique_tokens=1e9), "no law covers both"),
        (Request(parameters=1e9, days=3, inference_tokens=1e12), "--inference-tokens has no effect with --params"),
        (Request(parameters=1e9, unique_tokens=1e9), "does not say how much to train"),
        (Request(parameters=7e9, tokens=2e12, dollars=1000), r"take .* GPU-hours on 64 x h100 .* but --budget = \$1"),
        (Request(flops=1e24, days=1), "--flops: .* but --days = 1 allows 1.54k; raise it"),
        (
            Request(flops=1e21, inference_tokens=1e20),
            "--inference-tokens = 1e.20 would have a model trained for over 100",
        ),
        (Request(tokens=1000, days=1), "parameters, more than any model has; use more tokens or less compute"),
        (
            Request(tokens=27e9, gpu_hours=2),
            r"--tokens: .* take .* GPU-hours on 64 .* but --gpu-hours = 2.00 allows 2.00",
        ),
        (
            Request(gpu_hours=1e-5, parameters=1e9),
            r"--gpu-hours = .*: not one step of .* tokens, .* raise it, or use fewer",
        ),
        (Request(dollars=1e6, parameters=4e11), "layouts on 64 x h100 fits into"),
    ],
)
def test_contradictions(request_, message):
    with pytest.raises(PlanError, match=message):
        plan(request_, means())


def test_means_that_do_not_do():
    with pytest.raises(PlanError, match="h100-pcie has none in the table; give --price"):
        plan(Request(dollars=1000), means("h100-pcie", price=None))
    with pytest.raises(PlanError, match="gives no loss and cannot be planned with; try --law epoch"):
        plan(Request(flops=1e20), means(name="deepseek"))

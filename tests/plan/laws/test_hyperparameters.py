"""Kaplan's laws, and those of learning rate and batch size, at values computed from the published constants."""

import pytest

from megaxf.plan.laws import hyperparameters as hyper
from megaxf.plan.laws import kaplan
from megaxf.plan.laws.optimum import Allocation
from megaxf.plan.laws.table import law
from tests.plan.digits import Printed, printed


def test_kaplan():
    losses = tuple(kaplan.loss_of_parameters(size) for size in (1e8, 1e9, 1e10))
    assert losses == printed("2.829963", "2.375640", "1.994255")
    assert (kaplan.loss_of_tokens(1e9), kaplan.loss_of_tokens(1e10)) == printed("2.815642", "2.262442")
    days = tuple(kaplan.loss_of_compute(count * 8.64e19) for count in (1, 100, 1e4))
    assert days == printed("2.658080", "2.111388", "1.677135")
    assert kaplan.joint_loss(1e9, 1e10) == Printed("2.419652")
    batches = tuple(kaplan.critical_batch(loss) for loss in (4, 3, 2.5, 2))
    assert batches == printed("2.717e5", "1.0691e6", "2.5473e6", "7.3715e6")
    sizes = tuple(law("kaplan").form.parameters(flops) for flops in (1e21, 5.76e23))
    assert sizes == printed("7.768e9", "8.043e11")


@pytest.mark.parametrize(
    ("flops", "rate", "batch"),
    [
        (1e17, ".00233817", "106190"),
        (1e20, ".000985998", "1.01714e6"),
        (8.4e22, ".000424953", "9.20269e6"),
        (5.76e23, ".000334059", "1.7275e7"),
    ],
)
def test_deepseek(flops, rate, batch):
    assert hyper.deepseek(flops) == printed(rate, batch)


def test_other_laws():
    assert tuple(hyper.minicpm_batch(loss) for loss in (3, 2.5, 2)) == printed("1.275e6", "3.978e6", "1.601e7")
    assert hyper.step_law(1e9, 1e11) == printed(".0016325", "1.10771e6")
    assert hyper.step_law(7e9, 1.4e11) == printed(".000452022", "1.34235e6")
    assert hyper.porian(108e6) == (0.0047, 327680)
    assert hyper.porian(1e9) == printed("0.00223824", "1444888")
    assert hyper.porian(7e9) == printed("0.00117006", "5287286")
    assert hyper.moonlight(1e20) == pytest.approx((0.0127 / 10**1.14, 0.0065 * 10**8.276))
    batches = tuple(hyper.zhang_critical_batch(size) for size in (151e6, 1.2e9))
    assert batches == printed("5.04e5", "1.336e6")


def test_advice_is_the_range_of_the_laws():
    training = Allocation(1e9, 2e10, 2.6)
    advice = hyper.advise(training)
    assert advice.learning_rate() == (hyper.moonlight(1.2e20)[0], hyper.porian(1e9)[0])
    assert advice.batch_tokens() == (hyper.step_law(1e9, 2e10)[1], hyper.minicpm_batch(2.6))
    assert advice.critical_batch_tokens == pytest.approx(hyper.zhang_critical_batch(1e9))
    assert advice.warmup_tokens[0] == 1e9  # Porian's: as many tokens as parameters
    assert {row.law for row in advice.suggestions} >= {"minicpm", "kaplan"}
    without = hyper.advise(training._replace(loss=None))
    assert {row.law for row in without.suggestions} == {"deepseek", "moonlight", "step law", "porian"}


def test_warmup_is_never_longer_than_the_training():
    assert hyper.advise(Allocation(1e9, 1e7, None)).warmup_tokens == (1e7, 1e7)

"""Weights, token budgets, epochs, and limits of repetition."""

from __future__ import annotations

import math

import pytest

from data_pipeline.errors import DataError
from data_pipeline.order.blend import Blend
from data_pipeline.order.mixture import Share, SourceUse, as_share, check_epochs, weights_of

ROWS = {"code": 100, "web": 1000}


def test_each_unit_gives_the_weights_that_reach_it():
    """1100 rows in all for two epochs of code and 0.9 of the web; the same by budgets; the same by weight."""
    by_epochs = weights_of({"code": Share(2, "epochs"), "web": Share(0.9, "epochs")}, ROWS)
    by_tokens = weights_of({"code": Share(200 * 64, "tokens"), "web": Share(900 * 64, "tokens")}, ROWS)
    by_weight = weights_of({"code": as_share(2), "web": as_share(9.0)}, ROWS)
    for weights in (by_epochs, by_tokens, by_weight):
        assert Blend(weights).counts(1100) == [200, 900]


def test_units_are_not_mixed():
    shares = {"code": Share(2, "epochs"), "web": Share(0.5)}
    with pytest.raises(DataError, match=r"epochs and weight \(code by epochs, web by weight\); give all of them one"):
        weights_of(shares, ROWS)


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf])
def test_amounts_are_finite_and_not_below_zero(amount):
    with pytest.raises(DataError, match=r"source web has tokens = .*give a finite number from 0 up"):
        weights_of({"code": Share(1, "tokens"), "web": Share(amount, "tokens")}, ROWS)


def test_something_must_be_left():
    assert weights_of({"code": Share(0), "web": Share(1, "tokens")}, ROWS) == [0, 1]
    with pytest.raises(DataError, match="all sources \\(code, web\\) have the share 0"):
        weights_of({"code": Share(0), "web": Share(0)}, ROWS)


def test_too_many_epochs_are_named_before_the_start():
    use = [SourceUse("code", 400, 25600, 4.0), SourceUse("web", 900, 57600, 0.9)]
    assert check_epochs(use, {"code": 4, "web": 1}, "refuse") == []
    [sentence] = check_epochs(use, {"code": 3.5}, "warn")
    assert sentence.startswith("source code would be read 4.00 times, and max_epochs allows 3.5; train for fewer")
    with pytest.raises(DataError, match=r"source code would be read 4.00 times.*; source web would be read 0.90 times"):
        check_epochs(use, {"code": 1, "web": 0.5}, "refuse")
    with pytest.raises(DataError, match="max_epochs names the source wiki, and there are code, web"):
        check_epochs(use, {"wiki": 1}, "warn")

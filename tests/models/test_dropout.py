"""Dropout without a generator: its rate, its independence, and a mask that belongs to the token."""

import pytest
import torch

from megaxf.models.dropout import Dropout, mix, token_keys


def mask(rate, samples, seq, channels, site=3, seed=7):
    dropout = Dropout(rate, site)
    return (
        dropout(torch.ones(len(samples), seq, channels), token_keys(seed, torch.tensor(samples), torch.arange(seq))) > 0
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    out = Dropout(rate, 0)(torch.full((20, 50, 100), 2.0), token_keys(1, torch.arange(20), torch.arange(50)))
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * (rate * (1 - rate) / 1e5) ** 0.5, "five standard deviations of 100,000 draws"
    torch.testing.assert_close(out[out != 0].unique(), torch.tensor([2.0 / (1 - rate)]))


@pytest.mark.parametrize("other", [{"site": 4}, {"seed": 8}, {"samples": [100, 101, 102, 103]}])
def test_masks_of_other_sites_seeds_and_samples_are_independent(other):
    settings = {"rate": 0.5, "samples": [0, 1, 2, 3], "seq": 64, "channels": 128}
    agreement = (mask(**settings) == mask(**settings | other)).double().mean().item()
    assert abs(agreement - 0.5) < 5 * 0.5 / (4 * 64 * 128) ** 0.5


def test_no_line_of_the_mask_repeats_another():
    whole = mask(0.5, [0, 1], 32, 64)
    for lines in (whole.flatten(0, 1), whole.movedim(2, 0).flatten(1)):
        assert len({tuple(line.tolist()) for line in lines}) == len(lines)


def test_a_token_has_its_mask_in_any_batch_and_shard():
    whole = mask(0.3, [5, 9, 2], 16, 8)
    assert torch.equal(mask(0.3, [9], 16, 8)[0], whole[1])
    keys = token_keys(7, torch.tensor([5, 9, 2]), torch.arange(8, 16))
    assert torch.equal(Dropout(0.3, 3)(torch.ones(3, 8, 8), keys) > 0, whole[:, 8:])


def test_nothing_falls_out_in_evaluation_and_keys_are_asked_for_in_training():
    dropout, x = Dropout(0.5, 0), torch.randn(2, 3, 4)
    assert dropout.eval()(x, None) is x
    with pytest.raises(ValueError, match=r"Model.forward\(tokens, samples"):
        dropout.train()(x, None)


def test_mix_is_the_finaliser_of_splitmix64():
    """splitmix64 of S. Vigna, seed 0: the first output mixes 0x9E3779B97F4A7C15 and is 0xE220A8397B1DCDAF."""
    state = torch.tensor(0x9E3779B97F4A7C15 - 2**64)
    assert int(mix(state)) % 2**64 == 0xE220A8397B1DCDAF

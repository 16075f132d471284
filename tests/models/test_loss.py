import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from megaxf.models import loss as ours

chunked_cross_entropy = ours.chunked_cross_entropy


@pytest.fixture(params=[False, True], ids=["eager", "compiled"], autouse=True)
def way(request, monkeypatch):
    """All of this file both ways."""
    monkeypatch.setitem(globals(), "chunked_cross_entropy", partial(ours.chunked_cross_entropy, compiled=request.param))


def case(tokens=23, hidden=16, vocab=37, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(tokens, hidden, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, hidden, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, (tokens,), generator=generator)
    labels[::5] = -100
    return states, weight, labels


def whole(states, weight, labels, z_loss):
    """The same from all logits at once."""
    logits = states @ weight.t()
    nll = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    squares = logits.logsumexp(-1).square()[labels != -100].sum()
    return nll.sum() + z_loss * squares, nll


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("chunk_size", [1, 4, 23, 1000, None])
def test_equals_the_whole_logits(chunk_size, z_loss):
    states, weight, labels = case()
    expected, expected_nll = whole(states, weight, labels, z_loss)
    expected_gradients = torch.autograd.grad(3 * expected, (states, weight))
    loss, nll = chunked_cross_entropy(states, weight, labels, chunk_size=chunk_size, z_loss=z_loss)
    gradients = torch.autograd.grad(3 * loss, (states, weight))
    torch.testing.assert_close((loss, nll), (expected, expected_nll.detach()))
    torch.testing.assert_close(gradients, expected_gradients)
    assert not nll.requires_grad


@pytest.mark.parametrize(
    ("vocab", "value"), [(256, 5.545177), (32000, 10.373491), (50257, 10.824905), (128256, 11.761784)]
)
def test_equal_logits_cost_the_log_of_the_vocabulary(vocab, value):
    loss, _ = chunked_cross_entropy(torch.zeros(2, 4), torch.zeros(vocab, 4), torch.tensor([0, vocab - 1]))
    assert loss.item() / 2 == pytest.approx(value, abs=2e-6)


def test_z_loss_of_equal_logits():
    labels = torch.tensor([1, -100, 2])
    loss, nll = chunked_cross_entropy(torch.zeros(3, 4), torch.zeros(8, 4), labels, z_loss=0.5)
    assert nll.sum().item() == pytest.approx(2 * math.log(8))
    assert loss.item() == pytest.approx(2 * math.log(8) + 0.5 * 2 * math.log(8) ** 2)


def test_tied_weight_gets_both_gradients():
    _, table, labels = case()
    tokens = labels.roll(1).clamp(min=0)

    def gradient(loss_of):
        return torch.autograd.grad(loss_of(F.embedding(tokens, table).tanh()), table)[0]

    chunked = gradient(lambda states: chunked_cross_entropy(states, table, labels, chunk_size=4)[0])
    torch.testing.assert_close(chunked, gradient(lambda states: whole(states, table, labels, 0.0)[0]))


def test_only_the_needed_gradient_is_made():
    states, weight, labels = case()
    expected = torch.autograd.grad(whole(states, weight, labels, 0.0)[0], (states, weight))
    chunked_cross_entropy(states, weight.detach(), labels)[0].backward()
    torch.testing.assert_close(states.grad, expected[0])
    chunked_cross_entropy(states.detach(), weight, labels)[0].backward()
    torch.testing.assert_close(weight.grad, expected[1])


def test_no_label_counted_gives_zero_and_zero_gradient():
    states, weight, labels = case()
    loss, nll = chunked_cross_entropy(states, weight, torch.full_like(labels, -100), chunk_size=4, z_loss=1.0)
    loss.backward()
    assert loss.item() == nll.sum().item() == 0
    assert not states.grad.any() and not weight.grad.any()


def test_extreme_logits_stay_finite():
    states, weight, labels = case()
    loss, _ = chunked_cross_entropy(states * 1e4, weight, labels)
    loss.backward()
    torch.testing.assert_close(loss, whole(states * 1e4, weight, labels, 0.0)[0])
    assert torch.isfinite(weight.grad).all()


def test_weight_gradient_of_bf16_is_summed_in_fp32():
    """512 chunks, each adding 1/512 of the sum: a bf16 sum would stop growing at half of it."""
    states = torch.ones(512, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    loss, _ = chunked_cross_entropy(states, weight, torch.zeros(512, dtype=torch.int64), chunk_size=1)
    loss.backward()
    assert weight.grad.tolist() == [[-256.0], [256.0]]


def test_bf16_is_near_fp32():
    states, weight, labels = case(dtype=torch.bfloat16)
    loss, _ = chunked_cross_entropy(states, weight, labels, chunk_size=4)
    loss.backward()
    wide = [t.detach().float().requires_grad_() for t in (states, weight)]
    expected = whole(*wide, labels, 0.0)[0]
    expected.backward()
    assert loss.dtype == torch.float32 and weight.grad.dtype == torch.bfloat16
    assert loss.item() == pytest.approx(expected.item(), rel=5e-3)
    for tensor, exact in zip((states, weight), wide, strict=True):
        assert (tensor.grad.float() - exact.grad).norm() < 0.02 * exact.grad.norm()


def test_evaluation_makes_no_gradient():
    states, weight, labels = case()
    with torch.no_grad():
        loss, _ = chunked_cross_entropy(states, weight, labels)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole(states, weight, labels, 0.0)[0].detach())


class Half:
    """A part of the vocabulary, of which the logits of the rest are known."""

    def __init__(self, size, first, rest, labels, first_of_rest):
        self.size, self.first = size, first
        here = (labels >= first_of_rest) & (labels < first_of_rest + rest.shape[1])
        column = (labels - first_of_rest).where(here, 0)
        target = rest.gather(1, column[:, None])[:, 0] * here
        self.rest = rest.amax(1), (rest - rest.amax(1, keepdim=True)).exp().sum(1), target

    def combine(self, statistics):
        largest = torch.maximum(statistics[0], self.rest[0])
        totals = [total * (top - largest).exp() for top, total, _ in (statistics, self.rest)]
        return torch.stack([largest, sum(totals), statistics[2] + self.rest[2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_of_the_vocabulary_make_up_the_whole(dtype):
    states, weight, labels = case(dtype=dtype)
    wide = [t.detach().double().requires_grad_() for t in (states, weight)]
    expected, expected_nll = whole(*wide, labels, 0.01)
    expected.backward()
    of_states = torch.zeros_like(wide[0])
    cut, bound = 20, 1e-5 if dtype == torch.float32 else 2e-2
    for own, other in ((slice(0, cut), slice(cut, 37)), (slice(cut, 37), slice(0, cut))):
        rest = (states @ weight[other].t()).detach().float()
        part = Half(37, own.start, rest, labels, other.start)
        loss, nll = chunked_cross_entropy(states, weight[own], labels, z_loss=0.01, vocabulary=part)
        weight.grad = states.grad = None
        loss.backward()
        of_states += states.grad
        assert loss.item() == pytest.approx(expected.item(), rel=bound)
        assert (nll - expected_nll).norm() < bound * expected_nll.norm()
        assert (weight.grad[own] - wide[1].grad[own]).norm() < bound * wide[1].grad[own].norm()
    assert (of_states - wide[0].grad).norm() < bound * wide[0].grad.norm()


def test_second_backward_is_refused():
    states, weight, labels = case()
    loss, _ = chunked_cross_entropy(states, weight, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        loss.backward()


@pytest.mark.parametrize("label", [37, -1, -101])
def test_label_outside_the_vocabulary_is_named(label):
    states, weight, labels = case()
    labels[3] = label
    with pytest.raises(ValueError, match=rf"label {label} is outside the vocabulary, 0..36"):
        chunked_cross_entropy(states, weight, labels)

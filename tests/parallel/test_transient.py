"""What is made again for the backward pass is not kept, is made once, is let go, and has the same values."""

import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megaxf.models.attention import attention
from megaxf.parallel.transient import Transient


class Double(torch.autograd.Function):
    """Stands for the gathering: [1, 2, seq/2, heads, head_dim] -> [1, 2, seq, heads, head_dim]."""

    @staticmethod
    def forward(ctx, share):
        ctx.save_for_backward(share)
        return twice(share)

    @staticmethod
    def backward(ctx, gradient):
        return sum(gradient.chunk(2, dim=2))


def twice(share):
    return torch.cat((share, share), dim=2)


class Scene:
    """Two chunks of queries against the row, which is watched."""

    def __init__(self, backend):
        generator = torch.Generator().manual_seed(1)
        self.q = torch.randn(2, 8, 4, 6, generator=generator, requires_grad=True)
        self.share = torch.randn(2, 2, 4, 2, 6, generator=generator, requires_grad=True)
        self.backend, self.made, self.row = backend, [], None

    def make(self, share):
        row = twice(share)
        self.made.append(weakref.ref(row))
        return row

    def attend(self, row, q):
        chunks = zip(q.chunk(2, dim=1), (4, 8), strict=True)
        return [attention(x, *row[:, :, :seen], backend=self.backend) for x, seen in chunks]

    def plain(self):
        return torch.cat(self.attend(Double.apply(self.share), self.q), dim=1)

    def transient(self):
        row = Double.apply(self.share)
        self.row = weakref.ref(row)
        transient = Transient(row, self.make)
        with transient:
            return transient.join(self.attend(row, self.q))

    def gradients(self, out):
        return torch.autograd.grad(out.square().sum(), (self.q, self.share))


@pytest.fixture(params=["sdpa", "reference"])
def scene(request):
    return Scene(request.param)


def test_same_values_and_gradients(scene):
    out, expected = scene.transient(), scene.plain()
    assert torch.equal(out, expected)
    for ours, theirs in zip(scene.gradients(out), scene.gradients(expected), strict=True):
        assert torch.equal(ours, theirs)


def test_the_tensor_is_let_go_and_made_once_for_a_backward_pass():
    scene = Scene("sdpa")
    out = scene.transient()
    assert scene.row() is None and not scene.made
    for passes in (1, 2):
        torch.autograd.grad(out.square().sum(), (scene.q, scene.share), retain_graph=True)
        assert len(scene.made) == passes and scene.made[-1]() is None


def test_only_shares_of_the_tensor_and_of_the_joined_output_are_kept():
    """By hooks around it, which see what is kept: the share, queries, log-sum-exps, and the output once."""
    scene, storages = Scene("sdpa"), {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = scene.transient()
        total = out.square().sum()  # saves the output, as the next layer does
    log_sums = 2 * [4 * 2 * 4 * 4]
    assert sorted(storages.values()) == sorted([scene.share.nbytes, scene.q.nbytes, out.nbytes, *log_sums])
    expected = scene.gradients(scene.plain())
    for ours, theirs in zip(torch.autograd.grad(total, (scene.q, scene.share)), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_recomputation_around_it_keeps_nothing_of_it(scene):
    out = checkpoint(scene.transient, use_reentrant=False)
    for ours, theirs in zip(scene.gradients(out), scene.gradients(scene.plain()), strict=True):
        assert torch.equal(ours, theirs)

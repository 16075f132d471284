"""The CPU's own causal attention against the formula in float64."""

import pytest
import torch

from megaxf.models import attention_cpu
from megaxf.models.attention import attention

SEQ = attention_cpu.SMALLEST_BLOCK + 44
"""Two blocks, the second one not whole."""


def inputs(heads, kv_heads, dtype, seq=SEQ):
    """q, k, v [batch, seq, heads, head_dim] and a gradient of the shape of q."""
    generator = torch.Generator().manual_seed(heads)
    shapes = [(2, seq, n, 16) for n in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def gradients(function, tensors, dtype):
    """The output and the gradients of q, k and v, in float64."""
    *leaves, upstream = [tensor.to(dtype).clone() for tensor in tensors]
    for leaf in leaves:
        leaf.requires_grad_()
    out = function(*leaves)
    out.backward(upstream)
    return [out.detach().double(), *(leaf.grad.double() for leaf in leaves)]


def ours(q, k, v):
    """With the heads first, as the backend calls it."""
    out = attention_cpu.causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 16**-0.5)
    return out.transpose(1, 2)


@pytest.mark.parametrize("seq", [7, SEQ, attention_cpu.SMALLEST_BLOCK * attention_cpu.MOST_BLOCKS + 61])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
def test_equals_the_formula(heads, kv_heads, dtype, tolerance, seq):
    tensors = inputs(heads, kv_heads, dtype, seq)
    expected = gradients(lambda q, k, v: attention(q, k, v, backend="reference"), tensors, torch.float64)
    for name, exact, got in zip(("out", "q", "k", "v"), expected, gradients(ours, tensors, dtype), strict=True):
        assert (got - exact).norm() / exact.norm() < tolerance, name


def test_large_scores_do_not_overflow():
    tensors = inputs(6, 2, torch.float32)
    tensors[0].mul_(1e4)
    expected = gradients(lambda q, k, v: attention(q, k, v, backend="reference"), tensors, torch.float64)
    for name, exact, got in zip(("out", "q", "k", "v"), expected, gradients(ours, tensors, torch.float32), strict=True):
        assert got.isfinite().all()
        assert (got - exact).norm() <= 1e-2 * exact.norm().clamp(min=1e-3), name


def test_a_compiled_model_takes_it_and_gets_the_kernels_gradients():
    tensors = inputs(6, 2, torch.bfloat16, seq=40)
    torch._dynamo.reset()
    seen = []
    compiled = torch.compile(attention, backend=lambda graph, _: seen.append(graph.code) or graph.forward)
    got = gradients(compiled, tensors, torch.bfloat16)
    assert "CausalAttention" in "".join(seen) or "autograd_function" in "".join(seen)
    for ours_, kernels in zip(got, gradients(attention, tensors, torch.bfloat16), strict=True):
        assert (ours_ - kernels).norm() / kernels.norm() < 1e-2


@pytest.mark.parametrize(
    "tensors",
    [inputs(2, 2, torch.float32), inputs(2, 2, torch.bfloat16, attention_cpu.LONGEST + 1)],
    ids=["fp32", "long"],
)
def test_other_cases_keep_the_kernel(tensors):
    assert not attention_cpu.pays(tensors[0].transpose(1, 2))
    assert not attention_cpu.pays(inputs(2, 2, torch.bfloat16)[0].transpose(1, 2)), "not compiling"

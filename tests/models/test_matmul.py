"""A product has the same values by whichever library and in whichever order it is computed."""

import itertools
from functools import partial

import pytest
import torch

from megaxf.models import matmul
from megaxf.models.linear import Linear, join
from megaxf.models.matmul import add_mm, linear, mm

CPUS = [
    pytest.param({"SLOW_MKL": slow and matmul.ONEDNN, "AMX": amx}, id=f"{'AMD' if slow else 'Intel'}{'-AMX' * amx}")
    for slow, amx in ((True, False), (False, False), (False, True))
]
REALLY_SLOW_MKL = matmul.SLOW_MKL
"""On this processor, before any test says otherwise: MKL adds up in another order there for each width."""
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=CPUS, autouse=True)
def cpu(request, monkeypatch):
    """As if on each kind of CPU: what is faster on one is right on all."""
    for name, value in request.param.items():
        monkeypatch.setattr(matmul, name, value)
    return request.param


def close(dtype, steps=60):
    eps = torch.finfo(dtype).eps
    return partial(torch.testing.assert_close, rtol=2 * eps, atol=steps * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (2, 6), (9, 1), (40, 1), (3, 30), (0, 4)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_order(dtype, shape, bias, large, monkeypatch):
    monkeypatch.setattr(matmul, "ONEDNN_NUMBERS", 0 if large else 1 << 20)
    draw = torch.Generator().manual_seed(2)
    x, weight, offset = (torch.randn(size, generator=draw).to(dtype) for size in ((*shape, 37), (53, 37), (53,)))
    layer = Linear(37, 53, bias=bias, dtype=dtype)
    layer.weight.data, layer.bias = weight, torch.nn.Parameter(offset) if bias else None
    exact = x.double() @ weight.double().t() + (offset.double() if bias else 0)
    with torch.inference_mode():
        found = layer(x)
    assert found.shape == exact.shape and found.dtype == dtype
    close(dtype)(found.double(), exact)


def test_one_vector():
    x, weight = torch.randn(37), torch.randn(53, 37)
    with torch.inference_mode():
        torch.testing.assert_close(linear(x, weight), weight @ x)


def test_rows_that_lie_apart(monkeypatch):
    monkeypatch.setattr(matmul, "ONEDNN_NUMBERS", 0)
    x, weight = torch.randn(6, 3, 37), torch.randn(53, 37)
    with torch.inference_mode():
        torch.testing.assert_close(linear(x[:, -1], weight), x[:, -1].contiguous() @ weight.t())


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("shape", [(37,), (6, 37), (2, 41, 37), (0, 3, 37)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(dtype, shape, bias, compiled):
    """Those of the formula in float64, for each input that wants one."""
    draw = torch.Generator().manual_seed(2)
    made = [torch.randn(size, generator=draw).to(dtype) for size in (shape, (53, 37), (53,))]
    upstream = torch.randn(*shape[:-1], 53, generator=draw).to(dtype)
    inputs = made if bias else made[:2]
    wide, found = ([x.to(kind, copy=True).requires_grad_() for x in inputs] for kind in (torch.float64, dtype))
    exact = wide[0] @ wide[1].t() + (wide[2] if bias else 0)
    product = torch.compile(linear, backend="aot_eager") if compiled else linear
    result = product(*found)
    assert result.dtype == dtype
    close(dtype)(result.double(), exact.detach())
    exact.backward(upstream.double())
    result.backward(upstream)
    for ours, theirs in zip(found, wide, strict=True):
        assert ours.grad.is_contiguous()
        close(dtype, 200)(ours.grad.double(), theirs.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [5, 80])
def test_compiled_without_gradients(dtype, rows, monkeypatch):
    """As evaluation and the forward pass of column-parallel maps call it."""
    monkeypatch.setattr(matmul, "ONEDNN_NUMBERS", 0)
    torch.compiler.reset()
    x, weight = torch.randn(2, rows, 37).to(dtype), torch.randn(53, 37).to(dtype)
    with torch.no_grad():
        close(dtype)(torch.compile(linear)(x, weight).double(), x.double() @ weight.double().t())


def test_no_gradient_is_made_that_nobody_wants(monkeypatch, cpu):
    calls = []
    monkeypatch.setattr(matmul, "mm", lambda *operands: calls.append(operands) or mm(*operands))
    x, weight = torch.randn(80, 37), torch.randn(53, 37, requires_grad=True)
    linear(x, weight).sum().backward()
    assert len(calls) == (2 if cpu["SLOW_MKL"] else 0)
    weight.requires_grad_(False)
    linear(x.requires_grad_(), weight).sum().backward()
    assert len(calls) == (4 if cpu["SLOW_MKL"] else 0)
    torch.testing.assert_close(x.grad, weight.sum(0).expand_as(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("left_turned", "right_turned"), list(itertools.product((False, True), repeat=2)))
def test_operands_of_any_layout(dtype, left_turned, right_turned):
    left, right = torch.randn(41, 37).to(dtype), torch.randn(37, 29).to(dtype)
    left = left.t().contiguous().t() if left_turned else left
    right = right.t().contiguous().t() if right_turned else right
    exact = left.double() @ right.double()
    close(dtype)(mm(left, right).double(), exact)
    out = torch.empty(41, 29, dtype=dtype)
    assert mm(left, right, out) is out
    close(dtype)(out.double(), exact)
    total = torch.ones(41, 29, dtype=dtype)
    assert add_mm(total, left, right) is total
    close(dtype)(total.double(), exact + 1)


def test_rows_of_a_product_do_not_depend_on_each_other():
    """To the bit, as causality and batches want it."""
    x, weight = torch.randn(80, 37), torch.randn(53, 37)
    before = linear(x, weight)
    changed = torch.cat([x[:60], torch.randn(20, 37)])
    assert torch.equal(linear(changed, weight)[:60], before[:60])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 80])
@pytest.mark.parametrize("bias", [False, True])
def test_joined_maps_are_one_product_with_the_outputs_of_each(dtype, rows, bias, monkeypatch, cpu):
    maps = [Linear(37, outputs, bias=bias, dtype=dtype) for outputs in (53, 11, 12)]
    torch.manual_seed(2)
    for parameter in (parameter for layer in maps for parameter in layer.parameters()):
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, rows, 37).to(dtype)
    with torch.inference_mode():
        apart, weights = maps[0].beside(x, *maps[1:]), [layer.weight.clone() for layer in maps]
        join(*maps)
        monkeypatch.setattr(Linear, "forward", lambda *given: pytest.fail("a product of its own"))
        together = maps[0].beside(x, *maps[1:])
    for layer, weight in zip(maps, weights, strict=True):
        assert torch.equal(layer.weight, weight)
        assert layer.weight.untyped_storage().data_ptr() == maps[0].weight.untyped_storage().data_ptr()
    for layer, one, other in zip(maps, together, apart, strict=True):
        exact = x.double() @ layer.weight.double().t() + (layer.bias.double() if bias else 0)
        close(dtype)(one.double(), exact)
        close(dtype)(other.double(), exact)
        if cpu["SLOW_MKL"] or not REALLY_SLOW_MKL:
            close(dtype, 20)(one, other)

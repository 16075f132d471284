"""A product has the same values in whichever order it is computed."""

import pytest
import torch

from megaxf.models import linear
from megaxf.models.linear import Linear, join, product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (2, 6), (9, 1), (40, 1), (3, 30), (0, 4)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_order(dtype, shape, bias, large, monkeypatch):
    monkeypatch.setattr(linear, "ONEDNN_NUMBERS", 0 if large else 1 << 20)
    draw = torch.Generator().manual_seed(2)
    x, weight, offset = (torch.randn(size, generator=draw).to(dtype) for size in ((*shape, 37), (53, 37), (53,)))
    layer = Linear(37, 53, bias=bias, dtype=dtype)
    layer.weight.data, layer.bias = weight, torch.nn.Parameter(offset) if bias else None
    exact = x.double() @ weight.double().t() + (offset.double() if bias else 0)
    with torch.no_grad():
        found = layer(x)
    assert found.shape == exact.shape and found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=60 * torch.finfo(dtype).eps)


def test_one_vector():
    x, weight = torch.randn(37), torch.randn(53, 37)
    with torch.no_grad():
        torch.testing.assert_close(product(x, weight), weight @ x)


def test_rows_that_lie_apart(monkeypatch):
    monkeypatch.setattr(linear, "ONEDNN_NUMBERS", 0)
    x, weight = torch.randn(6, 3, 37), torch.randn(53, 37)
    with torch.inference_mode():
        torch.testing.assert_close(product(x[:, -1], weight), x[:, -1].contiguous() @ weight.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 80])
@pytest.mark.parametrize("bias", [False, True])
def test_joined_maps_are_one_product_with_the_outputs_of_each(dtype, rows, bias, monkeypatch):
    maps = [Linear(37, outputs, bias=bias, dtype=dtype) for outputs in (53, 11, 12)]
    for parameter in (parameter for layer in maps for parameter in layer.parameters()):
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, rows, 37).to(dtype)
    with torch.no_grad():
        apart, weights = maps[0].beside(x, *maps[1:]), [layer.weight.clone() for layer in maps]
        join(*maps)
        monkeypatch.setattr(Linear, "forward", lambda *given: pytest.fail("a product of its own"))
        together = maps[0].beside(x, *maps[1:])
    for layer, weight in zip(maps, weights, strict=True):
        assert torch.equal(layer.weight, weight)
        assert layer.weight.untyped_storage().data_ptr() == maps[0].weight.untyped_storage().data_ptr()
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=20 * torch.finfo(dtype).eps)

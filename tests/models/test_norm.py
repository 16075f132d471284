import pytest
import torch

from megaxf.models.norm import RMSNorm


@pytest.mark.parametrize(
    ("eps", "expected"),
    [
        (0.0, [0.36514837, 0.73029674, 1.09544512, 1.46059349]),
        (1e-5, [0.36514813, 0.73029626, 1.09544438, 1.46059251]),
    ],
)
def test_values(eps, expected):
    assert RMSNorm(4, eps)(torch.tensor([1.0, 2, 3, 4])).tolist() == pytest.approx(expected, abs=1e-7)


def test_gradient_is_the_formula_and_orthogonal_to_the_input():
    """dx = (g w - y mean(g w y)) / rms, where y is the normed input."""
    norm = RMSNorm(8, 0.0)
    generator = torch.Generator().manual_seed(0)
    x, upstream = torch.randn(2, 8, generator=generator)
    norm.weight.data = torch.rand(8, generator=generator) + 0.5
    x.requires_grad_()
    norm(x).backward(upstream)
    rms = x.detach().square().mean().sqrt()
    y, scaled = x.detach() / rms, upstream * norm.weight.detach()
    torch.testing.assert_close(x.grad, (scaled - y * (scaled * y).mean()) / rms)
    assert (x.grad @ x.detach()).item() == pytest.approx(0, abs=1e-6)


def test_scaling_the_input_changes_nothing():
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    norm = RMSNorm(16, 0.0)
    torch.testing.assert_close(norm(x), norm(1000 * x))
    torch.testing.assert_close(norm(x).square().mean(-1), torch.ones(3))


def test_bf16_is_normed_in_fp32_and_rounded_before_the_weight():
    norm = RMSNorm(32, 1e-5, torch.bfloat16)
    generator = torch.Generator().manual_seed(2)
    norm.weight.data = torch.rand(32, generator=generator).to(torch.bfloat16)
    x = (100 * torch.randn(4, 32, generator=generator)).to(torch.bfloat16)
    quotient = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.equal(norm(x), quotient.to(torch.bfloat16) * norm.weight)

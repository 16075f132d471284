"""The two forms of the AdamW step give one result, and the sums of gradients keep fp32."""

from unittest import mock

import pytest
import torch

from megaxf.config import Optimizer
from megaxf.engine.gradient import Gradients, Norm, clip_factor
from megaxf.engine.optimizer import build_adamw, fresh_state
from megaxf.engine.update import CompiledUpdate, FusedUpdate
from megaxf.parallel.mesh import Axis

LAYERS = [{f"layers.{layer}.a.weight": (33, 7), f"layers.{layer}.c.bias": (7,)} for layer in range(2)]
SHAPES = {"b.weight": (5, 64), **LAYERS[0], **LAYERS[1], "norm.weight": (33,)}
ALONE = Axis("parts", 0, (0,), None)


def parameters(dtype):
    """Masters in fp32 and the weights beside them, which in fp32 are the same."""
    generator = torch.Generator().manual_seed(0)
    masters = {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype).float())
        for name, shape in SHAPES.items()
    }
    if dtype == torch.float32:
        return masters, masters
    return masters, {name: torch.nn.Parameter(master.detach().to(dtype)) for name, master in masters.items()}


def train(update, dtype, clip, poison=()):
    """Norms of five steps and what they leave behind."""
    masters, weights = parameters(dtype)
    optimizer = build_adamw(masters, Optimizer(learning_rate=0.01, weight_decay=0.1))
    step_on = update(optimizer, masters, weights, Norm(SHAPES, ALONE), clip)
    generator, norms = torch.Generator().manual_seed(1), []
    for step in range(5):
        gradients = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}
        if step in poison:
            gradients["b.weight"][2, 3] = float("nan")
        norms.append(step_on(gradients))
    return norms, masters, weights, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_compiled_and_plain_steps_are_equal(dtype, clip):
    norms, masters, _, optimizer = train(FusedUpdate, dtype, clip)
    compiled_norms, compiled, compiled_weights, compiled_optimizer = train(CompiledUpdate, dtype, clip)
    torch.testing.assert_close(compiled_norms, norms, rtol=1e-6, atol=0)
    for name in SHAPES:
        torch.testing.assert_close(compiled[name], masters[name], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(compiled_weights[name], compiled[name].to(dtype), rtol=0, atol=0)
        expected, got = optimizer.state[masters[name]], compiled_optimizer.state[compiled[name]]
        assert int(got["step"]) == int(expected["step"]) == 5
        for key in ("exp_avg", "exp_avg_sq"):  # sums of about 0.1 that may cancel: a rounding is 1e-8
            torch.testing.assert_close(got[key], expected[key], rtol=1e-6, atol=1e-7)
    for name, before in parameters(dtype)[0].items():
        assert not torch.equal(masters[name], before)


def test_what_compilation_leaves_is_given_back_before_the_moments_are_made_and_after():
    moments_made = []
    with (
        mock.patch("megaxf.engine.update.fresh_state", side_effect=fresh_state) as moments,
        mock.patch("megaxf.engine.update.return_freed_memory", side_effect=lambda: moments_made.append(moments.called)),
    ):
        train(CompiledUpdate, torch.float32, 0.0)
    assert moments_made == [False, True]


@pytest.mark.parametrize("update", [FusedUpdate, CompiledUpdate])
def test_a_gradient_that_is_not_finite_changes_nothing(update):
    norms, masters, *_ = train(update, torch.float32, 1.0, poison=(0, 1, 2, 3, 4))
    assert norms == [float("inf")] * 5
    for name, master in parameters(torch.float32)[0].items():
        assert torch.equal(masters[name], master)


def test_sums_of_bf16_gradients_are_fp32_and_a_single_one_stays_as_it_is():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    gradients = Gradients({"w": weight})
    (weight * torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)).sum().backward()
    assert gradients.sums["w"].dtype == torch.bfloat16 and weight.grad is None
    for _ in range(256):
        (weight * 2**-9).sum().backward()
    assert gradients.sums["w"].tolist() == [1.5, 2.5, 4.5]
    gradients.clear()
    assert gradients.sums == {}


@pytest.mark.parametrize(("norm", "largest", "expected"), [(4.0, 0.0, 1.0), (0.5, 1.0, 1.0), (4.0, 1.0, 0.25)])
def test_clip_factor(norm, largest, expected):
    assert clip_factor(norm, largest) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("update", [FusedUpdate, CompiledUpdate])
def test_the_norm_of_a_large_gradient_is_exact(update):
    """A running fp32 sum over four million squares is off by 1e-4."""
    gradient = torch.randn(2**22, generator=torch.Generator().manual_seed(2)).view(2048, 2048)
    masters = {"a.weight": torch.nn.Parameter(torch.zeros(2048, 2048))}
    optimizer = build_adamw(masters, Optimizer(learning_rate=0.01))
    norm = update(optimizer, masters, masters, Norm(masters, ALONE), 0.0)({"a.weight": gradient})
    assert norm == pytest.approx(float(gradient.double().norm()), rel=1e-6)

"""What a GPU computes equals what the CPU computes: kernels, loss, and whole steps of the engine."""

import pytest
import torch

from megaxf.engine import create, micro_batches
from megaxf.models.attention import attention, causal_mask
from megaxf.models.loss import chunked_cross_entropy
from megaxf.parallel.mesh import build_mesh
from tests.distributed.tiny import global_batch, tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def distance(got, exact):
    """Relative to the length of the exact tensor."""
    exact = exact.double()
    return float((got.detach().cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("window", [None, 5])
def test_attention(dtype, window):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 40, heads, 16, generator=generator) for heads in (6, 2, 2))
    exact = attention(*(x.double() for x in (q, k, v)), mask=causal_mask(40, window=window), backend="reference")
    mask = causal_mask(40, window=window, device="cuda")
    got = attention(*(x.to("cuda", dtype) for x in (q, k, v)), mask=mask)
    assert distance(got, exact) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_last_queries_of_a_longer_sequence(dtype):
    """As each rank of a context axis has them: causal, and with gradients."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, seq, heads, 16, generator=generator) for seq, heads in ((12, 6), (40, 2), (40, 2))]
    results = []
    for device, kind, backend in (("cpu", torch.float64, "reference"), ("cuda", dtype, "sdpa")):
        leaves = [x.to(device, kind).requires_grad_() for x in inputs]
        out = attention(*leaves, backend=backend)
        results.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for exact, got in zip(*results, strict=True):
        assert distance(got, exact.detach()) < TOLERANCE[dtype]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_loss_and_its_gradients(dtype, compiled):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(50, 24, generator=generator), torch.randn(61, 24, generator=generator) * 0.1
    labels = torch.randint(61, (50,), generator=generator)
    labels[::3] = -100
    leaves = [x.double().requires_grad_() for x in (hidden, weight)]
    logits = leaves[0] @ leaves[1].T
    exact = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    exact.backward()
    on_gpu = [x.to("cuda", dtype).requires_grad_() for x in (hidden, weight)]
    loss, _ = chunked_cross_entropy(*on_gpu, labels.cuda(), chunk_size=7, compiled=compiled)
    loss.backward()
    assert distance(loss, exact.detach()) < TOLERANCE[dtype]
    for got, leaf in zip(on_gpu, leaves, strict=True):
        assert distance(got.grad, leaf.grad) < TOLERANCE[dtype]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
def test_steps_of_the_reference_engine(precision, tolerance, compiled):
    curves = []
    for device in ("cpu", "cuda"):
        run = tiny_run(train={"precision": precision, "compile": compiled and device == "cuda"})
        engine = create(run, build_mesh(), device)
        curve = []
        for step in range(5):
            batch = type(global_batch(step))(*(x if x is None else x.to(device) for x in global_batch(step)))
            result = engine.train_step(micro_batches(batch, 2), 1e-3)
            curve.append([result.loss, result.grad_norm])
        curves.append(curve)
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=tolerance, atol=0)

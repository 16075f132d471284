import math

import pytest
import torch

from megaxf.models.attention import BACKENDS, attention, cache_mask, causal_mask

both_backends = pytest.mark.parametrize("backend", list(BACKENDS))


def heads(rows):
    """[seq, head_dim] -> [1, seq, 1, head_dim]"""
    return torch.tensor(rows, dtype=torch.float64)[None, :, None]


def random_heads(seq, count, head_dim=8, seed=0, dtype=torch.float32):
    return torch.randn(2, seq, count, head_dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


@both_backends
def test_worked_example(backend):
    q = k = heads([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    v = heads([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    causal = attention(q, k, v, backend=backend)
    full = attention(q, k, v, backend=backend, mask=torch.ones(3, 3, dtype=torch.bool))
    expected_causal = heads([[1, 2], [2.3395231, 3.3395231], [3.51046953, 4.51046953]])
    expected_full = heads([[3, 4], [3.40667256, 4.40667256], [3.51046953, 4.51046953]])
    torch.testing.assert_close(causal, expected_causal, rtol=0, atol=1e-8)
    torch.testing.assert_close(full, expected_full, rtol=0, atol=1e-8)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_scaled_scores_have_unit_variance(head_dim):
    """Standard error of the variance is 0.34 %, see the kurtosis 3 + 6/d."""
    generator = torch.Generator().manual_seed(head_dim)
    q, k = (torch.randn(200_000, head_dim, generator=generator) for _ in range(2))
    products = (q * k).sum(-1)
    assert products.var() == pytest.approx(head_dim, rel=0.02)
    assert (products / math.sqrt(head_dim)).var() == pytest.approx(1, rel=0.02)


@both_backends
def test_default_scale_is_one_over_the_root_of_head_dim(backend):
    q, k, v = (random_heads(5, 2, seed=seed) for seed in range(3))
    default = attention(q, k, v, backend=backend)
    assert torch.equal(default, attention(q, k, v, backend=backend, scale=1 / math.sqrt(8)))
    assert not torch.allclose(default, attention(q, k, v, backend=backend, scale=1.0))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_backends_agree(kv_heads, masked):
    q, k, v = random_heads(11, 4), random_heads(11, kv_heads, seed=1), random_heads(11, kv_heads, seed=2)
    mask = causal_mask(11, window=4) if masked else None
    torch.testing.assert_close(
        attention(q, k, v, mask=mask, backend="sdpa"), attention(q, k, v, mask=mask, backend="reference")
    )


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("seq", [1, 4, 10])
def test_last_queries_of_a_longer_sequence(kv_heads, seq):
    """Values and gradients are those of the last rows of the whole."""
    inputs = [
        random_heads(11, heads, seed=seed, dtype=torch.float64) for seed, heads in enumerate((4, kv_heads, kv_heads))
    ]
    upstream = random_heads(seq, 4, seed=3, dtype=torch.float64)
    results = []
    for part, backend in ((False, "reference"), (True, "reference"), (True, "sdpa")):
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        out = attention(q[:, -seq:] if part else q, k, v, backend=backend)[:, -seq:]
        results.append((out, *torch.autograd.grad(out, (q, k, v), upstream)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-12, atol=1e-12)


def test_last_queries_in_bf16_are_near_fp32():
    q, k, v = random_heads(5, 4), random_heads(16, 2, seed=1), random_heads(16, 2, seed=2)
    half = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().float().requires_grad_() for x in half]
    got, expected = attention(*half), attention(*exact, backend="reference")
    assert got.dtype == torch.bfloat16
    for ours, theirs in zip(
        (got, *torch.autograd.grad(got.sum(), half)),
        (expected, *torch.autograd.grad(expected.sum(), exact)),
        strict=True,
    ):
        assert (ours.float() - theirs).norm() / theirs.norm() < 0.01


@both_backends
def test_neighbouring_query_heads_share_a_key_head(backend):
    q, k, v = random_heads(5, 4), random_heads(5, 2, seed=1), random_heads(5, 2, seed=2)
    grouped = attention(q, k, v, backend=backend)
    alone = attention(q[:, :, 3:], k[:, :, 1:], v[:, :, 1:], backend=backend)
    torch.testing.assert_close(grouped[:, :, 3:], alone)


@both_backends
def test_query_without_a_key_gives_zero_and_no_nan(backend):
    q, k, v = (random_heads(3, 2, seed=seed).requires_grad_() for seed in range(3))
    mask = torch.tensor([[False, False, False], [True, True, False], [True, True, True]])
    out = attention(q, k, v, mask=mask, backend=backend)
    out.sum().backward()
    assert torch.equal(out[:, 0], torch.zeros_like(out[:, 0]))
    assert all(torch.isfinite(t).all() for t in (out, q.grad, k.grad, v.grad))


@both_backends
def test_large_scores_do_not_overflow(backend):
    q, k, v = (random_heads(4, 1, seed=seed) for seed in range(3))
    out = attention(q * 1e4, k * 1e4, v, backend=backend)
    assert torch.isfinite(out).all()


@both_backends
def test_bf16_stays_bf16_and_near_fp32(backend):
    q, k, v = (random_heads(9, 2, seed=seed, dtype=torch.bfloat16) for seed in range(3))
    out = attention(q, k, v, backend=backend)
    exact = attention(q.float(), k.float(), v.float(), backend="reference")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0.02, atol=0.02)


def seen(mask):
    """For each query of the first row, the keys that it sees."""
    return [row.nonzero()[:, 0].tolist() for row in mask[0, 0]]


def test_window_counts_the_query_itself():
    assert seen(causal_mask(5, window=3)) == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert seen(causal_mask(3, window=1)) == [[0], [1], [2]]


def test_no_mask_is_made_where_only_causality_limits():
    assert causal_mask(5) is None
    assert causal_mask(5, window=5) is None
    assert causal_mask(5, window=4) is not None


def test_documents_are_blocks_and_rows_differ():
    ids = torch.tensor([[4, 4, 9, 9, 9], [1, 2, 2, 2, 3]])
    mask = causal_mask(5, document_ids=ids)
    assert seen(mask) == [[0], [0, 1], [2], [2, 3], [2, 3, 4]]
    assert seen(mask[1:]) == [[0], [1], [1, 2], [1, 2, 3], [4]]
    assert seen(causal_mask(5, window=2, document_ids=ids)) == [[0], [0, 1], [2], [2, 3], [3, 4]]


def test_new_queries_are_aligned_with_the_last_keys():
    positions = torch.tensor([[3, 4], [0, 1]])
    mask = cache_mask(positions, slots=5)
    assert seen(mask) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(mask[1:]) == [[0], [0, 1]]
    assert seen(cache_mask(positions, slots=5, window=2)) == [[2, 3], [3, 4]]
    assert cache_mask(torch.tensor([[0, 1, 2]]), slots=3) is None


def test_slots_that_are_used_again_are_seen_by_the_position_they_hold():
    held = torch.tensor([[3, 4, 2], [0, 1, 1 << 40]])  # The last slot of the second row is empty.
    mask = cache_mask(torch.tensor([[4], [1]]), held, window=2)
    assert (seen(mask), seen(mask[1:])) == ([[0, 1]], [[0, 1]])


def test_misuse_is_named():
    q = random_heads(4, 2)
    with pytest.raises(ValueError, match=r"'flash' is not known; use one of reference, sdpa"):
        attention(q, q, q, backend="flash")
    with pytest.raises(ValueError, match="4 queries against 1 keys need a mask"):
        attention(q, q[:, :1], q[:, :1])

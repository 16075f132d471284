"""No cache changes a logit, and each keeps no more than it says."""

import pytest
import torch

from megaxf.generate import GenerateError
from megaxf.generate.caches import make_cache
from megaxf.generate.caches.paged import BLOCK

KINDS = ("static", "paged", "sliding")
TOKENS = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(1))


def read(model, cache, tokens, starts):
    """Logits of the next tokens [rows, seq] of the rows that the cache is about, which stand at `starts`."""
    positions = torch.tensor(starts)[:, None] + torch.arange(tokens.shape[1])
    with torch.no_grad():
        return model.logits(model(tokens, positions=positions, cache=cache))


def whole(model, tokens):
    with torch.no_grad():
        return model.logits(model(tokens))


@pytest.mark.parametrize("window", [None, 3, 8, 30])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_pieces_give_the_logits_of_one_pass(make_model, kind, window, chunk):
    if kind == "sliding" and window is None:
        window = 63
    model = make_model(sliding_window=window).double()  # in which rounding does not hide a fault, nor look like one
    cache = make_cache(kind, window, rows=2, length=40)
    cache.add(2)
    cache.rows = slice(0, 2)
    parts = TOKENS[:2].split(chunk, dim=1)
    pieces = [read(model, cache, part, [number * chunk] * 2) for number, part in enumerate(parts)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole(model, TOKENS[:2]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_and_go(make_model, kind):
    """Rows of 19, 12 and 4 tokens; the first leaves, a new one enters, and each goes on at its own position."""
    window = 6 if kind == "sliding" else None
    model = make_model(sliding_window=window)
    cache = make_cache(kind, window, rows=3, length=40)
    cache.add(3)
    for row, length in enumerate((19, 12, 4)):
        cache.rows = slice(row, row + 1)
        read(model, cache, TOKENS[row : row + 1, :length], [0])
    cache.remove(0)  # Row 0 is now the third one.
    cache.add(1)
    cache.rows = slice(2, 3)
    read(model, cache, TOKENS[:1, :9], [0])
    cache.rows = slice(0, 3)
    order, starts = [2, 1, 0], [4, 12, 9]
    for _ in range(15):
        new = TOKENS[order, starts][:, None]
        found = read(model, cache, new, starts)[:, 0]
        starts = [start + 1 for start in starts]
        for row, length, logits in zip(order, starts, found, strict=True):
            expected = whole(model, TOKENS[row : row + 1, :length])[0, -1]
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_memory(make_model):
    """Of rows of 40, 3 and 17 tokens, in elements of 2 layers of keys and values [tokens, 2, 12] in fp32."""
    token, length = 2 * 2 * 2 * 12 * 4, 64
    sizes = {}
    for kind in KINDS:
        cache = make_cache(kind, 8, rows=3, length=length)
        model = make_model(sliding_window=8)
        cache.add(3)
        for row, count in enumerate((40, 3, 17)):
            cache.rows = slice(row, row + 1)
            for start in range(0, count, 5):
                read(model, cache, TOKENS[row : row + 1, start : min(start + 5, count)], [start])
        sizes[kind] = cache.nbytes / token
    assert sizes["static"] == 3 * length
    assert sizes["sliding"] == 3 * 8
    assert 40 + 3 + 17 <= sizes["paged"] <= 1.25 * (3 + 1 + 2) * BLOCK


def test_blocks_are_used_again(make_model):
    model = make_model()
    cache = make_cache("paged", None, rows=1, length=64)
    for _ in range(5):
        cache.add(1)
        cache.rows = slice(0, 1)
        read(model, cache, TOKENS[:1], [0])
        held = cache.nbytes
        cache.remove(0)
    assert held == 3 * BLOCK * 2 * 2 * 2 * 12 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_positions_beyond_the_end_are_refused(make_model, kind):
    cache = make_cache(kind, 8, rows=1, length=20)
    cache.add(1)
    cache.rows = slice(0, 1)
    model = make_model(sliding_window=8)
    read(model, cache, TOKENS[:1, :20], [0])
    with pytest.raises(GenerateError, match="made for 20 tokens and got one at position 20"):
        read(model, cache, TOKENS[:1, :1], [20])


def test_which_cache():
    asked = [(kind, window) for kind in (None, "static", "paged") for window in (None, 4)]
    kinds = [type(make_cache(*one, rows=1, length=9)).__name__ for one in asked]
    assert kinds == ["StaticCache", "SlidingCache", "StaticCache", "StaticCache", "PagedCache", "PagedCache"]
    with pytest.raises(GenerateError, match="the model has no sliding_window; use static or paged"):
        make_cache("sliding", None, 1, 9)
    with pytest.raises(GenerateError, match="cache = 'ring' is not known; use one of static, paged, sliding"):
        make_cache("ring", None, 1, 9)

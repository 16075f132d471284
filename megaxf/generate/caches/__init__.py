"""Keys and values of the tokens so far. The protocol for the model is megaxf.models.attention.Cache.

    cache = make_cache("paged", None, rows=8, length=4096)
    cache.add(3)                          # three rows, 0, 1 and 2, still empty
    cache.rows = slice(0, 2)              # the next forward passes are about rows 0 and 1
    model(tokens, positions=positions, cache=cache)
    cache.remove(0)                       # row 2 is row 0 from now on

static    Memory for `rows` x `length` tokens from the start: the least to do for each token.
paged     Blocks, taken as rows grow and given back as they end: memory for the tokens that there are.
sliding   A ring of as many tokens as a window sees, for models that have one: memory bounded by the window.
"""

from __future__ import annotations

from megaxf.generate.caches.base import RowCache
from megaxf.generate.caches.paged import PagedCache
from megaxf.generate.caches.sliding import SlidingCache
from megaxf.generate.caches.static import StaticCache
from megaxf.generate.errors import GenerateError

__all__ = ["KINDS", "RowCache", "make_cache"]

KINDS = ("static", "paged", "sliding")


def make_cache(kind: str | None, window: int | None, rows: int, length: int) -> RowCache:
    """An empty cache.

    kind: one of KINDS; None for sliding where the model has a window, else static.
    window: tokens that a query sees. rows: the most at a time. length: the most tokens of a row.
    Raises GenerateError for an unknown kind, or a ring without a window.
    """
    kind = kind or ("sliding" if window else "static")
    if kind == "sliding":
        if window is None:
            raise GenerateError(
                "cache = sliding keeps what a window sees, and the model has no sliding_window; use static or paged"
            )
        return SlidingCache(rows, length, window)
    if kind not in KINDS:
        raise GenerateError(f"cache = {kind!r} is not known; use one of {', '.join(KINDS)}")
    return PagedCache(rows, length) if kind == "paged" else StaticCache(rows, length)

"""The loss of a model on texts: the mean over their tokens, each predicted from those before it.

    score = evaluate(model, open_texts("notes/", tokenizer, "validation"), tokenizer.eod_id, Rule(length=1024))
    score.loss, score.perplexity, score.bits_per_byte

By document: each begins after an end-of-document token, as a text begins in training, or after the mark that a model
of others expects there, and sees no other; the ends are not counted. Packed: all in a row, each followed by an
end-of-document token that is counted, as in training's validation loss, from which only the stride may differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from megaxf.generate.errors import GenerateError
from megaxf.generate.forward import Forward, evaluating
from megaxf.generate.texts import Document, Source, Window, windows


@dataclass(frozen=True)
class Rule:
    """What context a token is predicted from. Raises GenerateError for numbers that do not fit together."""

    length: int
    """Tokens of a window, the most that a token is predicted from."""
    stride: int | None = None
    """Tokens from the start of a window to the next: by default half its length by document, all of it packed."""
    packed: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise GenerateError(f"sequence-length = {self.length} must be 1 or more")
        if not 1 <= self.step <= self.length:
            raise GenerateError(
                f"stride = {self.stride} must lie between 1 and sequence-length = {self.length}, or tokens are left out"
            )

    @property
    def step(self) -> int:
        """The stride."""
        usual = self.length if self.packed or self.length == 1 else self.length // 2
        return usual if self.stride is None else self.stride

    def __str__(self) -> str:
        how = "all documents in a row, ends counted" if self.packed else "each document by itself, after an end"
        return f"{how}; windows of {self.length:,} tokens every {self.step:,}, each token counted once"


@dataclass
class Score:
    """Sums over one source or several."""

    source: str
    nll: float = 0.0
    """Negative log-probability of the counted tokens, in nats."""
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss), infinite where that is too large for a float."""
        return math.inf if self.loss > 700 else math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of UTF-8, which does not depend on the tokenizer."""
        return self.nll / math.log(2) / self.text_bytes if self.text_bytes else math.nan

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("source", "loss", "perplexity", "bits_per_byte", "tokens", "documents", "text_bytes", "seconds")
        return {name: getattr(self, name) for name in names}


def total(scores: list[Score]) -> Score:
    """All sources as one, each token counting the same."""
    names = ("nll", "tokens", "documents", "text_bytes", "seconds")
    return Score("all", *(sum(getattr(score, name) for score in scores) for name in names))


def evaluate(
    model: Any,
    source: Source,
    eod_id: int,
    rule: Rule,
    *,
    batch_size: int = 8,
    limit: int | None = None,
    opening: int | None = None,
    told: Callable[[int], None] = lambda size: None,
) -> Score:
    """The loss on a source, of its first `limit` documents.

    opening: the token that a document by itself begins after, by default `eod_id`.
    batch_size: windows in one forward pass. told: hears of the bytes of each document as it is read.
    Raises GenerateError where the rule is beyond the model's longest sequence, or a number is below 1.
    """
    forward = Forward(model)
    if rule.length > forward.longest:
        raise GenerateError(
            f"sequence-length = {rule.length} is beyond the model's longest sequence of {forward.longest} tokens"
        )
    for name, count in (("batch-size", batch_size), ("limit", limit)):
        if count is not None and count < 1:
            raise GenerateError(f"{name} = {count} must be 1 or more")
    started, score = time.perf_counter(), Score(source.name)
    documents = _counted(source.documents, score, limit, told)
    with evaluating(model):
        cut = _windows(documents, eod_id, eod_id if opening is None else opening, rule)
        while batch := list(islice(cut, batch_size)):
            nll, tokens = _nll(forward, batch)
            score.nll, score.tokens = score.nll + nll, score.tokens + tokens
    score.seconds = time.perf_counter() - started
    if not score.tokens:
        raise GenerateError(f"{source.name} has no token to be predicted: its documents are empty, or there are none")
    return score


def _counted(
    documents: Iterable[Document], score: Score, limit: int | None, told: Callable[[int], None]
) -> Iterator[Document]:
    for document in documents:
        if score.documents == limit:
            return
        score.documents += 1
        score.text_bytes += document.text_bytes
        told(document.text_bytes)
        yield document


def _windows(documents: Iterator[Document], eod_id: int, opening: int, rule: Rule) -> Iterator[Window]:
    if rule.packed:
        yield from windows(([*document.tokens, eod_id] for document in documents), rule.length, rule.step)
        return
    for document in documents:
        yield from windows([[opening], document.tokens], rule.length, rule.step)


def _nll(forward: Forward, batch: list[Window]) -> tuple[float, int]:
    """Sum over the targets of some windows, and their number. Padding lies behind all that looks back."""
    width = max(len(window.tokens) for window in batch) - 1
    rows = [window.tokens[:-1] + [0] * (width + 1 - len(window.tokens)) for window in batch]
    hidden = forward.model(torch.tensor(rows, device=forward.device))
    places = [slice(window.counted - 1, len(window.tokens) - 1) for window in batch]
    states = torch.cat([row[place] for row, place in zip(hidden, places, strict=True)])
    targets = [token for window in batch for token in window.tokens[window.counted :]]
    scores = forward.score(states, torch.tensor(targets, device=forward.device))
    return -scores.double().sum().item(), len(targets)

"""From logits to the next token: greedy, or drawn at a temperature from the likeliest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megaxf.generate.errors import GenerateError


@dataclass(frozen=True)
class Sampling:
    """How to choose. Raises GenerateError for values that have no meaning."""

    temperature: float = 0.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int | None = None
    """Draw among the k likeliest only; more than the vocabulary is all of it."""
    top_p: float = 1.0
    """Draw among the fewest likeliest tokens whose probabilities reach p (arXiv 1904.09751); 0 leaves the likeliest."""
    repetition_penalty: float = 1.0
    """Tokens of the row so far have their logits divided by it, or multiplied where negative (arXiv 1909.05858)."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise GenerateError(f"temperature = {self.temperature} must be 0 (the likeliest token) or more")
        if self.top_k is not None and self.top_k < 1:
            raise GenerateError(f"top-k = {self.top_k} must be 1 or more; leave it out to draw among all tokens")
        if not 0 <= self.top_p <= 1:
            raise GenerateError(f"top-p = {self.top_p} must lie between 0 and 1")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise GenerateError(
                f"repetition-penalty = {self.repetition_penalty} must be above 0; 1 changes nothing, more repeats less"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the seed."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


def row_generator(seed: int, row: int) -> torch.Generator:
    """The random numbers of a row, which depend on the seed and the row's number alone."""
    digest = hashlib.sha256(f"{seed}:{row}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def penalise(logits: torch.Tensor, rows: Sequence[Sequence[int]], penalty: float) -> torch.Tensor:
    """Logits [batch, vocab] after the repetition penalty for the tokens of each row so far."""
    logits = logits.clone()
    for row, tokens in zip(logits, rows, strict=True):
        seen = torch.tensor(sorted(set(tokens)), device=logits.device)
        row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return logits


def choose(logits: torch.Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> list[int]:
    """The next token of each row of logits [batch, vocab]. One generator a row; greedy choice draws nothing."""
    if sampling.greedy:
        return likeliest(logits)
    chances = probabilities(logits.float().cpu(), sampling)
    drawn = [torch.multinomial(row, 1, generator=own) for row, own in zip(chances, generators, strict=True)]
    return torch.cat(drawn).tolist()


def likeliest(logits: torch.Tensor) -> list[int]:
    """Of each row of logits [batch, vocab]; on a CPU by NumPy, whose argmax takes a tenth of the time."""
    if logits.device.type != "cpu":
        return logits.argmax(-1).tolist()
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).numpy().argmax(-1).tolist()


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution drawn from, [batch, vocab], fp32; tokens that top-k or top-p exclude have 0. Not for greedy."""
    logits, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    # Of differences in fp64: at a tiny temperature the logits themselves become infinite.
    chances = ((logits - logits[:, :1]).double() / sampling.temperature).softmax(-1).float()
    if sampling.top_k is not None:
        chances[:, sampling.top_k :] = 0
    if sampling.top_p < 1:
        # A token stays while those before it do not reach p.
        before = chances.cumsum(-1) - chances
        chances = chances.masked_fill(before >= sampling.top_p * chances.sum(-1, keepdim=True), 0)
    return torch.zeros_like(chances).scatter(-1, order, chances / chances.sum(-1, keepdim=True))


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """What the model itself gives to tokens [...], in nats, fp32: the log-softmax of its logits [..., vocab]."""
    wide = logits.float()
    return wide.gather(-1, tokens[..., None])[..., 0] - wide.logsumexp(-1)

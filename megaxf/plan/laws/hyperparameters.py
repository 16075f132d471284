"""Learning rate, batch size and warm-up that published laws suggest; they disagree, so the answer is a range.

Batch sizes and warm-up are in tokens. Each law is fitted to its own data, tokenizer and optimizer settings, all AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from megaxf.plan.laws.kaplan import critical_batch
from megaxf.plan.laws.optimum import Allocation


class Suggestion(NamedTuple):
    """What one law says; None where it says nothing."""

    law: str
    learning_rate: float | None
    batch_tokens: float | None
    source: str


class Advice(NamedTuple):
    """What all laws say for one training."""

    suggestions: tuple[Suggestion, ...]
    critical_batch_tokens: float
    """Zhang et al.: a batch with which the training takes a fifth more data than with a small one."""
    warmup_tokens: tuple[float, float]
    """Least and most: the number of parameters (Porian), or 2,000 steps of the middle batch (DeepSeek)."""

    def learning_rate(self) -> tuple[float, float]:
        """Least and most of the suggestions."""
        return _range(row.learning_rate for row in self.suggestions)

    def batch_tokens(self) -> tuple[float, float]:
        """Least and most of the suggestions."""
        return _range(row.batch_tokens for row in self.suggestions)


DEEPSEEK_WARMUP_STEPS = 2000


def deepseek(flops: float) -> tuple[float, float]:
    """(learning rate, batch) of DeepSeek LLM (arXiv 2401.02954), C in non-embedding FLOPs."""
    return 0.3118 * flops**-0.1250, 0.2920 * flops**0.3271


def moonlight(flops: float) -> tuple[float, float]:
    """(learning rate, batch) of Moonlight (arXiv 2502.16982)."""
    return 0.0127 * flops**-0.057, 0.0065 * flops**0.4138


def step_law(parameters: float, tokens: float) -> tuple[float, float]:
    """(learning rate, batch) of Step Law (arXiv 2503.04715); N without the vocabulary."""
    return 1.79 * parameters**-0.713 * tokens**0.307, 0.58 * tokens**0.571


def porian(parameters: float) -> tuple[float, float]:
    """(learning rate, batch) of Porian et al. (arXiv 2406.19146) as OLMo-core states them, at 20 tokens a parameter."""
    size = parameters / 108e6
    return 0.0047 * size ** (-1 / 3), 2048 * 160 * size ** (2 / 3)


def minicpm_batch(loss: float) -> float:
    """Batch of MiniCPM (arXiv 2404.06395) at a loss."""
    return 1.21e9 / loss**6.24


def zhang_critical_batch(parameters: float) -> float:
    """Critical batch of Zhang et al. (arXiv 2410.21676) at 20 tokens a parameter, in tokens: 512 to a sequence."""
    return 512 * 93.20 * (parameters / 1e6) ** 0.47


def advise(training: Allocation) -> Advice:
    """What the laws say for a training; those that need a loss are left out where it has none."""
    size, tokens, flops = training.parameters, training.tokens, training.flops
    rows = [
        Suggestion("deepseek", *deepseek(flops), "arXiv 2401.02954"),
        Suggestion("moonlight", *moonlight(flops), "arXiv 2502.16982"),
        Suggestion("step law", *step_law(size, tokens), "arXiv 2503.04715"),
        Suggestion("porian", *porian(size), "arXiv 2406.19146"),
    ]
    by_loss: dict[str, tuple[Callable[[float], float], str]] = {
        "minicpm": (minicpm_batch, "arXiv 2404.06395"),
        "kaplan": (critical_batch, "arXiv 2001.08361"),
    }
    if training.loss is not None:
        rows += [Suggestion(name, None, batch(training.loss), source) for name, (batch, source) in by_loss.items()]
    # Data of 20 tokens a parameter: the critical batch follows the data, not the size (the same paper).
    critical = zhang_critical_batch(tokens / 20)
    batches = sorted(row.batch_tokens for row in rows if row.batch_tokens)
    by_steps = min(DEEPSEEK_WARMUP_STEPS * batches[len(batches) // 2], tokens)
    by_size = min(size, tokens)
    return Advice(tuple(rows), critical, (min(by_size, by_steps), max(by_size, by_steps)))


def _range(numbers: Iterable[float | None]) -> tuple[float, float]:
    given = [number for number in numbers if number is not None]
    return min(given), max(given)

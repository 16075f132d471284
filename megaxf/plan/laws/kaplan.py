"""Kaplan et al. 2020 (arXiv 2001.08361): losses of the GPT-2 family on WebText2. N counts no embeddings."""

from __future__ import annotations

PF_DAY = 8.64e19
"""FLOPs of a petaflop/s for a day, the paper's unit of compute."""


def loss_of_parameters(parameters: float) -> float:
    """L(N) with unlimited data, trained to convergence."""
    return (8.8e13 / parameters) ** 0.076


def loss_of_tokens(tokens: float) -> float:
    """L(D) of a large model that is stopped early."""
    return (5.4e13 / tokens) ** 0.095


def loss_of_compute(flops: float) -> float:
    """L(C_min): the best loss for a compute budget at a small batch."""
    return (3.1e8 / (flops / PF_DAY)) ** 0.050


def joint_loss(parameters: float, tokens: float) -> float:
    """L(N, D), equation 1.5; its constants are not those of the laws of one variable."""
    return ((6.4e13 / parameters) ** (0.076 / 0.103) + 1.8e13 / tokens) ** 0.103


def critical_batch(loss: float) -> float:
    """B_crit in tokens at a loss: with it, steps and tokens are both twice their least."""
    return 2e8 / loss ** (1 / 0.21)

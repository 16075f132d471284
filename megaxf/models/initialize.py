"""Initial weights as a function of (seed, parameter name) alone: no rank, no order, no dtype, no other parameter."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import nn


def initialize(model: nn.Module, seed: int) -> None:
    """Fill every parameter of a model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(model, name, parameter.shape, seed))


def initial_weight(model: nn.Module, name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    """One parameter in fp32 on the CPU.

    Matrices are normal with `config.initializer_range` as standard deviation; those that write into the residual stream
    (`model.residual_projections`) have it divided by sqrt(2 * layers), so that the stream does not grow with depth
    (GPT-2). Norm weights are 1, biases 0.
    """
    if len(shape) == 1:
        return torch.full(shape, 0.0 if name.endswith("bias") else 1.0, device="cpu")
    return _normal(seed, name, shape) * _standard_deviation(model, name)


def _standard_deviation(model: Any, name: str) -> float:
    residual = name.endswith(model.residual_projections)
    depth = 2 * model.config.num_hidden_layers if residual else 1
    return model.config.initializer_range / math.sqrt(depth)


def _normal(seed: int, name: str, shape: torch.Size) -> torch.Tensor:
    """Standard normal numbers in fp32, drawn on the CPU so that every device gets the same."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(generator=generator)

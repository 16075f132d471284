"""Tensors as the bytes of a dtype."""

from __future__ import annotations

import torch

from megaxf.convert.errors import ConvertError

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def to_bytes(name: str, tensor: torch.Tensor, dtype: str) -> memoryview:
    """The elements in one of DTYPES, row after row, in little-endian order.

    Raises ConvertError where one is too large for float16, which would become infinite.
    """
    cast = tensor.to(DTYPES[dtype]).contiguous()
    if dtype == "float16" and tensor.dtype != torch.float16 and cast.isinf().any():
        raise ConvertError(f"{name} has values beyond 65504, the largest of float16; choose bfloat16 or float32")
    return cast.view(torch.uint8).numpy().reshape(-1).data


def rounded(name: str, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a tensor is in fp32 after it was in one of DTYPES, whatever its name."""
    return tensor.to(DTYPES[dtype]).float()

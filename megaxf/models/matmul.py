"""Products of matrices, each by the library that is the fastest on this CPU. On a GPU they are PyTorch's.

PyTorch takes Intel's MKL in fp32, which needs twice as long on AMD's processors as oneDNN, its other library. In bf16
it takes oneDNN, which makes little of Intel's matrix units (AMX) where there are few rows, as in generation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import register_flop_formula


def _cpu_facts() -> str:
    """Maker and abilities of the first core, as Linux tells them; nothing elsewhere."""
    try:
        with open("/proc/cpuinfo") as file:
            return file.read(1 << 13)
    except OSError:
        return ""


_FACTS = _cpu_facts()
ONEDNN = torch.backends.mkldnn.is_available()
SLOW_MKL = ONEDNN and any(maker in _FACTS for maker in ("AuthenticAMD", "HygonGenuine"))
AMX = "amx_bf16" in _FACTS
MANY_ROWS = 64
"""From so many on, a product takes the same time in whichever order."""
TURNED_ROWS = 16
"""From so many on, MKL is faster with the weight as the first factor."""
ONEDNN_ROWS, ONEDNN_NUMBERS = 4, 1 << 20
"""From so many rows, and numbers of a weight, oneDNN is faster than MKL on Intel's processors, too."""


def mm(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """left [rows, inner] @ right [inner, columns], into `out` where it is given."""
    if not by_onednn(left):
        return torch.mm(left, right, out=out)
    product: torch.Tensor = _onednn_mm(left, right)
    return product if out is None else out.copy_(product)


def add_mm(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total += left @ right, in the dtype of all three; gives the total."""
    return total.add_(mm(left, right)) if by_onednn(left) else total.addmm_(left, right)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias, [..., in] -> [..., out]; can be differentiated."""
    if x.device.type != "cpu" or (x.dtype == torch.bfloat16 and not AMX):
        return F.linear(x, weight, bias)
    rows = x.numel() // x.shape[-1]
    if rows < MANY_ROWS and not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
        return _few_rows(x, rows, weight, bias)
    if not by_onednn(x):
        return F.linear(x, weight, bias)
    y: torch.Tensor = _OnednnLinear.apply(x, weight) if torch.is_grad_enabled() else _onednn_linear(x, weight)
    return y if bias is None else y + bias


def by_onednn(x: torch.Tensor) -> bool:
    """Whether oneDNN makes the products of x where PyTorch would leave them to MKL."""
    return SLOW_MKL and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0


def for_one_row(weight: torch.Tensor) -> torch.Tensor:
    """A weight [out, in] laid out in memory as is best where a product has one row, as in the generation of one text.

    MKL reads it up to a quarter faster as [in, out], and slower where there are a few rows.
    """
    by_columns = weight.device.type == "cpu" and weight.dtype == torch.float32 and not SLOW_MKL
    return weight.t().contiguous().t() if by_columns else weight


def _few_rows(x: torch.Tensor, rows: int, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`linear` in generation on a CPU, not compiled: the compiler fails on the operator that PyTorch has for itself.

    With the weight, stored [out, in], as the second factor, libraries take up to half as long again in places: there
    it is made the first.
    """
    large = x.dtype == torch.float32 and rows >= ONEDNN_ROWS and weight.numel() >= ONEDNN_NUMBERS and ONEDNN
    if large or by_onednn(x):
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    turned = {torch.float32: rows >= TURNED_ROWS, torch.bfloat16: rows > 0}
    if not turned.get(x.dtype, False):
        return F.linear(x, weight, bias)
    flat = x.reshape(rows, -1)
    y = torch.mv(weight, flat[0]) if rows == 1 else torch.mm(weight, flat.t()).t().contiguous()
    y = y.view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


@torch.library.custom_op("megaxf::onednn_mm", mutates_args=(), device_types="cpu")
def _onednn_mm(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """An operator of our own, since the compiler would copy transposed operands of PyTorch's."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
    return product


@_onednn_mm.register_fake
def _(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@register_flop_formula(torch.ops.megaxf.onednn_mm)
def _(left: tuple[int, int], right: tuple[int, int], **_kwargs: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


def _onednn_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return mm(x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], -1)


class _OnednnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        of_x = mm(flat, weight).view_as(x) if ctx.needs_input_grad[0] else None
        of_weight = mm(flat.t(), x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
        return of_x, of_weight

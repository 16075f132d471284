"""Peak dense throughput of GPUs, found by the name that torch reports.

Vendors print twice these numbers for 2:4 sparse matrices; a peak of that kind makes an MFU half of the truth. An
unknown device has no entry, so that nobody divides by another one's peak: measure it instead.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """TFLOP/s of dense matrix products with fp32 accumulation; None where the device cannot."""

    bf16: float | None
    tf32: float | None
    fp32: float


_HOPPER = Peak(989.4, 494.7, 66.9)

PEAKS: dict[str, Peak] = {
    r"H100( SXM5)?( \d+GB)?( HBM3)?": _HOPPER,
    r"H100( \d+GB)? PCIe": Peak(756.0, 378.0, 51.2),
    r"H100 NVL": Peak(835.0, 417.5, 60.0),
    r"H200( SXM)?": _HOPPER,
    r"H200 NVL": Peak(835.0, 417.5, 60.0),
    r"GH200 \d+GB": _HOPPER,
    r"B200": Peak(2250.0, 1125.0, 75.0),
    r"GB200": Peak(2500.0, 1250.0, 80.0),
    r"A100-(SXM|PCI[Ee])\d?-\d+GB|A100 \d+GB PCIe": Peak(312.0, 156.0, 19.5),
    r"A10": Peak(125.0, 62.5, 31.2),
    r"A10G": Peak(70.0, 35.0, 31.5),
    r"A40": Peak(149.7, 74.8, 37.4),
    r"L4": Peak(121.0, 60.0, 30.3),
    r"L40": Peak(181.05, 90.5, 90.5),
    r"L40S": Peak(362.05, 183.0, 91.6),
    r"RTX A6000": Peak(154.85, 77.4, 38.7),
    r"GeForce RTX 3090": Peak(71.0, 35.6, 35.6),
    r"GeForce RTX 4090": Peak(165.2, 82.6, 82.6),
    r"(Tesla )?V100-(SXM2|SXM3|PCIE)-\d+GB": Peak(None, None, 15.7),
    r"MI250X": Peak(383.0, None, 95.7),
    r"MI300X": Peak(1307.4, 653.7, 163.4),
}
"""Regular expressions for the whole device name without its maker."""


def peak_flops(device_name: str, dtype: str = "bf16") -> float | None:
    """Peak dense FLOP/s of one device, None where it is not known.

    device_name: as torch.cuda.get_device_name() gives it. dtype: "bf16", "tf32" or "fp32".
    Raises ValueError for another dtype.
    """
    if dtype not in Peak._fields:
        raise ValueError(f"dtype {dtype!r} is not known; use one of {', '.join(Peak._fields)}")
    name = re.sub(r"^(NVIDIA|AMD Instinct)\s+", "", device_name.strip())
    for pattern, peak in PEAKS.items():
        if re.fullmatch(pattern, name):
            tflops = getattr(peak, dtype)
            return None if tflops is None else tflops * 1e12
    return None

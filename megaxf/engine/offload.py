"""What DeepSpeed needs to keep optimizer state and weights in memory of the CPU or on a local disk (arXiv 2104.07857).

The step of an offloaded optimizer is made by torch's AdamW, fused for CPUs, as without offloading: nothing has to be
compiled, and the results are the same. Files are read and written by DeepSpeed's async_io, which is compiled at its
first use on a machine, for some minutes.
"""

from __future__ import annotations

from typing import Any

import torch

from megaxf.config import Run
from megaxf.config_errors import ConfigError
from megaxf.engine.operators import load_operator
from megaxf.parallel.apply import Placed

ALIGNMENT = 256
"""Elements: DeepSpeed reads and writes fp32 in blocks of 1 KiB."""


def offload_config(run: Run[Any], placed: Placed, device: torch.device) -> dict[str, Any]:
    """The part of DeepSpeed's zero_optimization section that says what lies where."""
    engine = run.engine
    common = {"pin_memory": device.type == "cuda", "nvme_path": engine.nvme_folder}
    sections: dict[str, Any] = {}
    if engine.offload_optimizer != "none":
        sections["offload_optimizer"] = {"device": engine.offload_optimizer, **common}
    if engine.offload_parameters != "none":
        # One buffer for each parameter under way: of a layer and the next one, embedding and head.
        largest = max(_share(weight, placed) for weight in placed.weights.values())
        sections["offload_param"] = {
            "device": engine.offload_parameters,
            "max_in_cpu": 0,
            "buffer_size": -(-largest // ALIGNMENT) * ALIGNMENT,
            "buffer_count": 2 * max(len(list(layer.parameters())) for layer in placed.model.layers) + 2,
            **common,
        }
    return sections


def check_nvme(run: Run[Any], placed: Placed) -> None:
    """Load async_io; raises ConfigError where it cannot be compiled, or where DeepSpeed would lose gradients."""
    engine = run.engine
    users = [name for name in ("offload_optimizer", "offload_parameters") if getattr(engine, name) == "nvme"]
    if not users:
        return
    if engine.offload_optimizer == "nvme":
        _check_alignment(placed)
    from deepspeed.ops.op_builder import AsyncIOBuilder

    try:
        load_operator(AsyncIOBuilder())
    except (RuntimeError, ImportError, OSError) as error:
        raise ConfigError(
            "nvme",
            [
                f"engine.{users[0]} = nvme needs DeepSpeed's async_io, which cannot be compiled here: it takes a C++ "
                "compiler, ninja and the headers of libaio (Debian's libaio-dev); install them, or use "
                f"engine.{users[0]} = cpu. The reason given: {error}"
            ],
        ) from error


def _check_alignment(placed: Placed) -> None:
    """DeepSpeed reads gradients back one behind the other, and gets other numbers where one does not begin a block."""
    for name, weight in placed.weights.items():
        share = _share(weight, placed)
        if weight.dim() > 1 and share % ALIGNMENT:
            raise ConfigError(
                "nvme",
                [
                    f"engine.offload_optimizer = nvme cannot hold {name}: {weight.numel()} elements over "
                    f"{placed.mesh.replicas.size} ranks are {share} for each, not a multiple of {ALIGNMENT}, and "
                    "DeepSpeed would lose its gradient; use other sizes of the model, another number of ranks, or "
                    "engine.offload_optimizer = cpu"
                ],
            )


def _share(weight: torch.Tensor, placed: Placed) -> int:
    """Elements of a parameter on one rank under ZeRO 3."""
    return -(-weight.numel() // placed.mesh.replicas.size)

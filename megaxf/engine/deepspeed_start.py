"""DeepSpeed's import, and how a model comes into being under ZeRO 3."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from megaxf.engine.mpu import ModelParallelUnit

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Precision -> dtype of the weights that the model computes with."""


def import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed for an engine; raises RuntimeError without a process group."""
    if not dist.is_initialized():
        raise RuntimeError("engine.zero_stage > 0 needs torch.distributed, also for one process: start it before")
    return import_quietly(device)


def import_quietly(device: torch.device) -> Any:
    """DeepSpeed, without its chatter, told which device it works on."""
    # The second tells of a CUDA toolkit beside no GPU.
    for name in ("DeepSpeed", "torch.utils.cpp_extension"):
        logging.getLogger(name).addFilter(_is_error)
    warnings.filterwarnings("ignore", r".*(all_gather_into_tensor|reduce_scatter_tensor).*deprecated", FutureWarning)
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator, set_accelerator

    # Otherwise DeepSpeed compiles a collective of shared memory at the first use of gloo: a minute, and a compiler on
    # every node, for an operation that only its inference calls.
    deepspeed.ops.__compatible_ops__ = {}
    if device.type == "cpu":
        if get_accelerator().device_name() != "cpu":
            from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

            set_accelerator(CPU_Accelerator())
        # It refuses fp16 where the CPU has no instructions for it; PyTorch computes it on every CPU.
        get_accelerator().is_fp16_supported = lambda: True
    return deepspeed


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


class Partition:
    """Cuts a module's own parameters over the data-parallel ranks as soon as they exist, for ZeRO 3.

    So a rank never holds more than its shares and one module's parameters.
    """

    def __init__(self, deepspeed: Any, config: Mapping[str, Any], unit: ModelParallelUnit, precision: str) -> None:
        self._deepspeed, self._config, self._unit = deepspeed, dict(config), unit
        self._dtype = DTYPES[precision]
        self._first: Any = None

    def __call__(self, module: torch.nn.Module) -> None:
        """Keep this rank's share of the parameters; collective."""
        own = list(module.parameters(recurse=False))
        for weight in own:
            weight.data = weight.data.to(self._dtype)
        if self._first is not None:
            self._first.convert_to_zero_parameters(own)
            return
        self._first = own[0]
        self._deepspeed.zero.Init(
            module=torch.nn.ParameterList(own),
            data_parallel_group=self._unit.get_data_parallel_group(),
            config_dict_or_path=self._config,
            mpu=self._unit,
        )

"""Our settings -> DeepSpeed's dictionary."""

from __future__ import annotations

from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.offload import offload_config
from megaxf.parallel.apply import Placed

BUCKET = 2**26
"""Elements in one message between ranks, 256 MiB in fp32; DeepSpeed allocates buffers of this size."""


def deepspeed_config(run: Run[Any], placed: Placed, device: torch.device) -> dict[str, Any]:
    """The configuration of ZeRO 1 to 3."""
    train, data_size = run.train, placed.mesh.data_size
    elements = sum(weight.numel() for weight in placed.weights.values())
    bucket = min(BUCKET, elements + elements % 2)
    zero: dict[str, Any] = {
        "stage": run.engine.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        **offload_config(run, placed, device),
    }
    if run.engine.zero_stage == 3:
        # A layer is fetched in one message: to keep its small parameters everywhere would save none.
        zero["stage3_param_persistence_threshold"] = 0
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.global_batch_size // (train.micro_batch_size * data_size),
        "gradient_clipping": train.gradient_clip,
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
    }
    if train.precision == "bf16":
        # Each weight's gradient goes into the fp32 sum as soon as it is there, and its bf16 form is freed.
        config["bf16"] = {"enabled": True, "immediate_grad_update": True}
    if train.precision == "fp16":
        # A fixed scale, which the engine overrides.
        config["fp16"] = {"enabled": True, "loss_scale": 1}
    return config

"""The door to the training engines: plain torch, or DeepSpeed's ZeRO.

engine = create(run, model, mesh, device)
result = engine.train_step(micro_batches, learning_rate)
"""

from __future__ import annotations

from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.batch import TorchBatch, micro_batches, to_torch
from megaxf.engine.protocol import Engine, StepResult
from megaxf.models.initialize import initialize
from megaxf.parallel.mesh import Mesh

__all__ = ["Engine", "StepResult", "TorchBatch", "create", "micro_batches", "to_torch"]


def create(run: Run[Any], model: Any, mesh: Mesh, device: torch.device | str) -> Engine:
    """The engine of `run.engine.zero_stage` around a fresh model, whose weights it initialises; collective.

    model: the family's Model of `run.model`, made with `run.train`'s attention backend and recomputation, in fp32.
    """
    initialize(model, run.seed)
    model.to(device)
    if run.train.compile:
        for layer in model.layers:
            layer.compile()
    if run.engine.zero_stage == 0:
        from megaxf.engine.reference import ReferenceEngine

        return ReferenceEngine(run, model, mesh, torch.device(device))
    from megaxf.engine.deepspeed_engine import ZeroEngine

    return ZeroEngine(run, model, mesh, torch.device(device))

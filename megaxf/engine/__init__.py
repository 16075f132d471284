"""The door to the training engines: plain torch, or DeepSpeed's ZeRO.

engine = create(run, mesh, device)
result = engine.train_step(micro_batches, learning_rate)
"""

from __future__ import annotations

from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.batch import TorchBatch, micro_batches, to_torch
from megaxf.engine.protocol import Engine, StepResult
from megaxf.parallel.apply import place
from megaxf.parallel.mesh import Mesh

__all__ = ["Engine", "StepResult", "TorchBatch", "create", "micro_batches", "to_torch"]


def create(run: Run[Any], mesh: Mesh, device: torch.device | str) -> Engine:
    """The engine of a run around this rank's part of a fresh model; collective."""
    placed = place(run, mesh)
    if run.engine.zero_stage == 0:
        from megaxf.engine.reference import ReferenceEngine

        return ReferenceEngine(run, placed, torch.device(device))
    if run.parallel.pipeline_parallel_size > 1:
        from megaxf.engine.pipeline_engine import PipelineEngine

        return PipelineEngine(run, placed, torch.device(device))
    from megaxf.engine.deepspeed_engine import ZeroEngine

    return ZeroEngine(run, placed, torch.device(device))

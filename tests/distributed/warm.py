"""What every rank of a group has imported before it starts; see tests.distributed.pool.

Imported once, in the process that the ranks are forked from. Nothing here may start a thread, which no fork survives.
"""

import gc
import importlib

import torch

from megaxf.engine.deepspeed_start import import_quietly

for name in (
    "megaxf.engine.deepspeed_engine",
    "megaxf.engine.pipeline_engine",
    "megaxf.engine.reference",
    "megaxf.train.loop",
    "torch._inductor.compile_fx",  # DeepSpeed imports it with its first ZeRO optimizer
):
    importlib.import_module(name)
import_quietly(torch.device("cpu"))
gc.collect()
gc.freeze()  # DeepSpeed collects garbage at every turn: it need not look at a million objects of modules each time

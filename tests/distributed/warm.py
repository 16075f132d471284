"""What processes of tests have imported before they start; see tests.distributed.forking.

Imported once, in the process that all of them are forked from. Nothing here may start a thread or CUDA, which no fork
survives.
"""

import gc
import importlib
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

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

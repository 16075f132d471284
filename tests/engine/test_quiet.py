"""DeepSpeed says nothing on a start that goes well."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from tests.distributed.tiny import read_all, tiny_engine, tiny_run, train_steps, write_all
places = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
for stage, precision, offload in ((1, "bf16", {}), (2, "fp16", {}), (3, "bf16", places)):
    run = tiny_run(train={"precision": precision}, engine={"zero_stage": stage, **offload})
    engine = tiny_engine(run)
    train_steps(engine, run, range(1))
    write_all(engine, read_all(engine))
"""


def test_nothing_is_printed():
    environment = os.environ | {"LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_process_group_is_named():
    from tests.distributed.tiny import tiny_engine, tiny_run

    with pytest.raises(RuntimeError, match=r"needs torch\.distributed"):
        tiny_engine(tiny_run(engine={"zero_stage": 1}))

"""The ledger: published values of model states and logits, and its own arithmetic."""

import dataclasses

import pytest
import torch

from megaxf.engine import deepspeed_config, gradient
from megaxf.models import logits, loss
from megaxf.plan.memory import passing, states, zero
from megaxf.plan.memory.job import Job
from megaxf.plan.memory.ledger import ledger, ledgers
from megaxf.plan.memory.passing import published_logits_bytes
from megaxf.plan.memory.rows import GROUPS, STEP
from megaxf.plan.memory.states import published_state_bytes
from megaxf.plan.parameters import count
from megaxf.plan.stages import Part
from tests.distributed.tiny import tiny_run
from tests.plan.shapes import shape

GIB = 2**30
LLAMA_7B = shape(32000, 4096, 32, 11008, 32, 32)
LLAMA2_70B = shape(32000, 8192, 80, 28672, 64, 8)
LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)


def job(config, **settings):
    return Job(config, 8192, 1, (Part(range(config.num_hidden_layers), True, True),), **settings)


def states_of(found):
    return sum(row.bytes for row in found.rows if row.group in ("weights", "gradients", "optimizer"))


@pytest.mark.parametrize(
    ("parameters", "replicas", "unit", "published"),
    [
        (7_500_000_000, 64, 1e9, (120, 31.41, 16.64, 1.875)),
        (count(LLAMA3_8B).total, 8, GIB, (119.660, 41.133, 28.045, 14.958)),
        (count(LLAMA_7B).total, 8, GIB, (100.410, 34.516, 23.534, 12.551)),
        (count(LLAMA2_70B).total, 64, GIB, (1027.832, 269.003, 142.531, 16.060)),
    ],
)
def test_published_states_of_zero(parameters, replicas, unit, published):
    """ZeRO, arXiv 1910.02054, figure 1, and the same for other models."""
    found = [published_state_bytes(parameters, replicas, stage) / unit for stage in range(4)]
    assert found == pytest.approx(published, rel=3e-4)


def test_our_states_are_those_with_gradients_in_fp32():
    """18 bytes a parameter, 6 + 12 / r where the optimizer is cut: Megatron-LM's, with and without its distributed
    optimizer; GiB of Llama-3-8B on 8 ranks."""
    found = [states_of(ledger(job(LLAMA3_8B, zero_stage=stage, replicas=8, micro_batches=1))) / GIB for stage in (0, 1)]
    assert found == pytest.approx((134.618, 56.091), rel=1e-4)


def test_parts_of_the_states():
    """GiB of Llama-3-8B: 2 bytes a parameter of weights, 12 of masters and moments."""
    found = ledger(job(LLAMA3_8B, zero_stage=0))
    sizes = {group: sum(row.bytes for row in found.rows if row.group == group) for group in ("weights", "optimizer")}
    assert sizes["weights"] / GIB == pytest.approx(14.9575, abs=5e-5)
    assert sizes["optimizer"] / GIB == pytest.approx(89.745, abs=5e-4)


@pytest.mark.parametrize(
    ("stage", "each"), [(0, (2, 4, 12)), (1, (2, 4, 1.5)), (2, (2, 0.5, 1.5)), (3, (0.25, 0.5, 1.5))]
)
def test_the_table_of_bytes_a_parameter(stage, each):
    """Weights, gradients, optimizer over 8 replicas, as the head of megaxf.plan.memory.states has them."""
    config = shape(2**10, 2**10, 64, 2**10, 8, 8)
    rows = ledger(job(config, zero_stage=stage, replicas=8, micro_batches=4)).rows
    for group, expected in zip(("weights", "gradients", "optimizer"), each, strict=True):
        size = sum(row.bytes for row in rows if row.group == group and row.item != "gradients so far")
        assert size / count(config).total == pytest.approx(expected, rel=1e-3)


def test_published_logits():
    """GiB of the fp32 log-softmax that a loss in one piece keeps."""
    assert published_logits_bytes(8192, 128256) / GIB == pytest.approx(3.914, abs=5e-4)
    assert published_logits_bytes(2048, 32000) / GIB == pytest.approx(0.244, abs=5e-4)


def test_sizes_that_the_planner_repeats_are_those_of_the_trainer():
    """The planner stands below the engines and needs no torch, so it cannot ask them."""
    assert states.REFERENCE_BUCKET == gradient.BUCKET
    assert zero.ZERO_BUCKET == deepspeed_config.BUCKET
    assert passing.BLOCK == {"cpu": logits.CPU_BLOCK, "cuda": logits.GPU_BLOCK}
    for device, stands_for in (("cpu", "cpu"), ("meta", "cuda")):
        for vocab in (1000, 10**6 + 10**5):
            rows = loss._chunk_rows(torch.empty(vocab, 1, device=device))
            assert rows == max(passing.CHUNK_ROWS, passing.CHUNK[stands_for] // vocab)


def test_sums_of_a_ledger():
    found = ledger(job(LLAMA_7B, zero_stage=1, replicas=8, micro_batches=4))
    by_moment = {moment: sum(found.at(moment, group) for group in GROUPS if group != "allowance") for moment in STEP}
    assert by_moment == {moment: found.at(moment) for moment in STEP}
    assert found.peak == max(by_moment.values()) == by_moment[found.moment]
    assert found.allowances == sum(row.bytes for row in found.rows if row.group == "allowance")
    assert found.allowances > found.peak / 20


def test_what_makes_it_smaller():
    """Each way to save memory saves some, and where it says."""
    base = job(LLAMA_7B, zero_stage=1, replicas=8, micro_batches=4)
    plain = ledger(base)
    for change in ({"recompute": "selective"}, {"recompute": "full"}, {"zero_stage": 2}, {"tensor_parallel_size": 2}):
        assert ledger(dataclasses.replace(base, **change)).peak < plain.peak
    moved = ledger(dataclasses.replace(base, zero_stage=2, offload_optimizer="cpu"))
    kept = ledger(dataclasses.replace(base, zero_stage=2))
    assert moved.peak < kept.peak
    assert kept.off_device("host") == 0
    assert moved.off_device("host") > 12 * count(LLAMA_7B).total / 8


def test_a_ledger_for_each_stage():
    layout = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    model, train = {"intermediate_size": 46, "num_hidden_layers": 6}, {"precision": "bf16"}
    run = tiny_run(model, train=train, parallel=layout, engine={"zero_stage": 1})
    first, last = ledgers(run, 8, "cpu")
    assert (first.stage, last.stage) == (0, 1)
    assert {row.item for row in last.rows} >= {"final norm", "logits of a chunk", "inputs and outputs of the stage"}
    assert not {row.item for row in first.rows} & {"final norm", "logits of a chunk"}

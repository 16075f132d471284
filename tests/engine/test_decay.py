"""Weight decay reaches matrices only, at every stage; a batch without a counted target gives a gradient of zero."""

import pytest
import torch

from megaxf.engine.batch import micro_batches
from megaxf.engine.optimizer import parameter_groups
from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_run, write_all


def decay_once(stage, precision):
    """(result, state before, state after) of a step at rate 0.1 and decay 0.1 on an all-masked batch."""
    run = tiny_run(
        {"attention_bias": True},
        train={"precision": precision},
        optimizer={"weight_decay": 0.1},
        engine={"zero_stage": stage},
    )
    engine = tiny_engine(run)
    before = read_all(engine)
    for name, tensors in before.items():
        if tensors["master"].dim() == 1:
            tensors["master"] += 0.5 + len(name) / 64  # zeros would hide decay
    write_all(engine, before, 0)
    batch = own_rows(global_batch(0))._replace(labels=torch.full((8 // run_size(), 18), -100))
    result = engine.train_step(micro_batches(batch, 2), 0.1)
    return result, before, read_all(engine)


def run_size():
    return torch.distributed.get_world_size()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_decay_alone(ranks2, stage, precision):
    for result, before, after in ranks2(decay_once, stage, precision):
        assert result[:4] == (0.0, 0.0, 0.0, 0)
        assert sum(name.endswith("bias") for name in before) == 6
        for name, tensors in before.items():
            weight = tensors["master"]
            # 1 - 0.1 * 0.1 in double precision, then one fp32 product.
            expected = weight * 0.99 if weight.dim() == 2 else weight
            assert torch.equal(after[name]["master"], expected), name


def test_groups():
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))
    groups = parameter_groups({"norm": vector, "weight": matrix}, 0.3)
    assert [(group["params"], group["weight_decay"]) for group in groups] == [([matrix], 0.3), ([vector], 0.0)]
    assert len(parameter_groups({"weight": matrix}, 0.3)) == 1

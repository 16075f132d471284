"""`train.compile` compiles each layer and changes nothing but the rounding."""

from functools import partialmethod
from unittest import mock

import pytest
import torch

from megaxf.engine import micro_batches
from megaxf.engine.statistics import Statistics
from tests.distributed.tiny import global_batch, tiny_engine, tiny_run


def curve(stage, compiled, backend="inductor"):
    """The numbers of four steps, that of activations among them; aot_eager captures the same graphs, and saves time."""
    run = tiny_run({"num_hidden_layers": 1}, train={"compile": compiled}, engine={"zero_stage": stage})
    with mock.patch.object(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=backend)):
        engine = tiny_engine(run)
    statistics = Statistics(engine, run, torch.device("cpu"))
    steps = [statistics.train_step(micro_batches(global_batch(step), 2), 1e-3) for step in range(4)]
    return torch.tensor([[*result[:3], groups["layers.0"].activation_rms] for result, groups in steps])


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("stage", "backend"), [(0, "inductor"), (1, "aot_eager"), (3, "aot_eager")])
def test_compiled_layers_give_the_same_curve(run_on, stage, backend):
    (plain,) = run_on(1, curve, stage, False)
    (compiled,) = run_on(1, curve, stage, True, backend, timeout=900)
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=0)

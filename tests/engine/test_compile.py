"""`train.compile` compiles each layer and changes nothing but the rounding."""

from functools import partialmethod

import pytest
import torch

from tests.distributed.tiny import tiny_engine, tiny_run, train_steps


def curve(stage, compiled, backend="inductor"):
    """The numbers of four steps; aot_eager captures the same graphs, and saves the time to compile them."""
    run = tiny_run({"num_hidden_layers": 1}, train={"compile": compiled}, engine={"zero_stage": stage})
    compile_module = torch.nn.Module.compile
    torch.nn.Module.compile = partialmethod(compile_module, backend=backend)
    try:
        engine = tiny_engine(run)
    finally:
        torch.nn.Module.compile = compile_module
    return torch.tensor([result[:3] for result in train_steps(engine, run, range(4))])


@pytest.mark.parametrize(("stage", "backend"), [(0, "inductor"), (1, "aot_eager"), (3, "aot_eager")])
def test_compiled_layers_give_the_same_curve(run_on, stage, backend):
    (plain,) = run_on(1, curve, stage, False)
    (compiled,) = run_on(1, curve, stage, True, backend, timeout=300)
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=0)

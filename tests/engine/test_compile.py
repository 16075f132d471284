"""`train.compile` compiles each layer and changes nothing but the rounding."""

from functools import partialmethod
from unittest import mock

import pytest
import torch

from megaxf.engine import micro_batches
from megaxf.engine.statistics import Statistics
from megaxf.engine.update import FusedUpdate
from megaxf.models.logits import differentiate_compiled
from megaxf.parallel.apply import place
from megaxf.parallel.loss import vocab_parallel_loss
from megaxf.parallel.mesh import build_mesh
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


def compiled_losses(compiled):
    """How often the loss of a model, and that over a part of the vocabulary, are compiled."""
    run, mesh = tiny_run(train={"compile": compiled}), build_mesh()
    losses = place(run, mesh).loss, vocab_parallel_loss(mesh.axis("tensor"), False, 7, compiled)
    with mock.patch("megaxf.models.loss.differentiate_compiled", side_effect=differentiate_compiled) as seen:
        for loss in losses:
            loss(torch.ones(1, 3, 4), torch.ones(7, 4), torch.tensor([[0, 6, -100]]))
    return seen.call_count


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_is_compiled_with_the_layers(run_on, compiled):
    assert run_on(1, compiled_losses, compiled, timeout=300) == [2 * compiled]


def graphs(layers, dropout):
    """How many forward passes of a model's layers torch.compile captures in a step."""
    run = tiny_run({"num_hidden_layers": layers}, train={"compile": True, "dropout": dropout}, engine={"zero_stage": 0})
    captured = []

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    with (
        mock.patch.object(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=backend)),
        mock.patch("megaxf.engine.reference.CompiledUpdate", FusedUpdate),
    ):
        engine = tiny_engine(run)
        engine.train_step(micro_batches(global_batch(0), 2), 1e-3)
    return len(captured)


def test_layers_share_what_is_compiled_whatever_their_number(run_on):
    (few,), (many,) = (run_on(1, graphs, layers, 0.1, timeout=300) for layers in (2, 10))
    assert few == many

"""Numbers of groups of layers: right by hand, the same in every layout, and without an effect on what they look at."""

import math

import pytest
import torch

from megaxf.engine import micro_batches
from megaxf.engine.statistics import Groups, Statistics, by_number, square_sum
from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_mesh, train_steps
from tests.parity.matrix import matrix_run

TENSOR = {"tensor_parallel_size": 2}
PIPELINE = {"pipeline_parallel_size": 2}
EVEN = {"sequence_length": 16}
TIED = "five layers, tied"
LAYOUTS = {
    "plain, two replicas": ({"parallel": {}, "engine": {"zero_stage": 0}}, 2),
    "plain, sequence": ({"parallel": TENSOR | {"sequence_parallel": True}, "engine": {"zero_stage": 0}}, 2),
    "zero 1, tensor": ({"parallel": TENSOR, "engine": {"zero_stage": 1}}, 4),
    "zero 2, context": ({"parallel": {"context_parallel_size": 2}, "engine": {"zero_stage": 2}}, 4),
    "zero 3": ({"parallel": {}, "engine": {"zero_stage": 3}}, 2),
    "zero 3, sequence": ({"parallel": TENSOR | {"sequence_parallel": True}, "engine": {"zero_stage": 3}}, 4),
    "zero 2, offloaded": ({"parallel": {}, "engine": {"zero_stage": 2, "offload_optimizer": "cpu"}}, 2),
    "pipeline, tensor": ({"parallel": PIPELINE | TENSOR, "engine": {"zero_stage": 1}}, 4),
    "two parts a stage": ({"parallel": PIPELINE | {"pipeline_schedule": "dualpipev"}, "engine": {"zero_stage": 1}}, 2),
}
METRICS = {"layer_groups": 3}
RATES = (3e-4, 5e-4, 1e-4)


def hooks(engine):
    """How many each layer has: ZeRO 3 has some of its own."""
    return [len(layer._forward_hooks) for layer in engine.placed.model.layers]


def watched(precision="fp32", sections=None):
    """(results without being looked at, the same with it, the numbers of the groups) of three steps."""
    run = matrix_run(TIED, data=EVEN, metrics=METRICS, train={"precision": precision}, **(sections or {}))
    plain_engine, engine, mesh = tiny_engine(run), tiny_engine(run), tiny_mesh(run)
    plain = [train_steps(plain_engine, run, range(s, s + 1), rate)[0] for s, rate in enumerate(RATES)]
    statistics = Statistics(engine, run, torch.device("cpu"))
    batches = [micro_batches(own_rows(global_batch(s, run), mesh), run.train.micro_batch_size) for s in range(3)]
    steps = [statistics.train_step(batch, rate) for batch, rate in zip(batches, RATES, strict=True)]
    assert hooks(engine) == hooks(plain_engine)
    return plain, [result for result, _ in steps], [by_number(groups) for _, groups in steps]


@pytest.fixture(scope="module")
def expected(run_on):
    """The numbers of one process."""
    ((_, _, groups),) = run_on(1, watched)
    return groups


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_numbers_of_one_process_and_trains_as_if_nobody_looked(run_on, expected, layout):
    sections, ranks = LAYOUTS[layout]
    for plain, results, groups in run_on(ranks, watched, "fp32", sections):
        assert plain == results, "looking has changed the training"
        for step, found in enumerate(groups):
            total = math.sqrt(sum(norm**2 for norm in found["gradient_norm"].values()))
            assert total == pytest.approx(results[step].grad_norm, rel=1e-5)
            assert found.keys() == expected[step].keys()
            for name, values in found.items():
                assert values == pytest.approx(expected[step][name], rel=1e-5), (step, name)


@pytest.mark.parametrize("layout", ["zero 2, context", "zero 3", "pipeline, tensor"])
def test_so_it_is_in_bf16(run_on, layout):
    sections, ranks = LAYOUTS[layout]
    for plain, results, groups in run_on(ranks, watched, "bf16", sections):
        assert plain == results
        for result, found in zip(results, groups, strict=True):
            total = math.sqrt(sum(norm**2 for norm in found["gradient_norm"].values()))
            assert total == pytest.approx(result.grad_norm, rel=1e-4)


def test_by_hand():
    """Without clipping the first moment after one step is (1 - beta1) x the gradient."""
    run = matrix_run("untied", train={"gradient_clip": 0.0}, data=EVEN)
    engine = tiny_engine(run)
    batches = micro_batches(global_batch(0, run), 2)
    model, names = engine.placed.model, ["embedding", "layers.0", "layers.1", "head"]
    outputs = {"layers.0": [], "layers.1": []}
    with torch.no_grad():
        for batch in batches:
            shared = model.shared(batch.tokens, samples=batch.samples)
            hidden = model.embed(batch.tokens, shared)
            for layer, kept in zip(model.layers, outputs.values(), strict=True):
                hidden = layer(hidden, shared)
                kept.append(hidden.square().mean().item())
    before = read_all(engine)
    _, groups = Statistics(engine, run, torch.device("cpu")).train_step(batches, 1e-2)
    after = read_all(engine)
    own = dict.fromkeys(before, "head") | {"model.embed_tokens.weight": "embedding"}
    own |= {name: f"layers.{name.split('.')[2]}" for name in before if ".layers." in name}

    def length(group, of):
        return math.sqrt(sum(of(name).double().square().sum().item() for name in before if own[name] == group))

    assert list(groups) == names and set(own.values()) == set(names)
    for name, found in groups.items():
        gradient = length(name, lambda p: after[p]["exp_avg"] / (1 - run.optimizer.betas[0]))
        update = length(name, lambda p: after[p]["master"] - before[p]["master"])
        weights = length(name, lambda p: before[p]["master"])
        assert found.gradient_norm == pytest.approx(gradient, rel=1e-5)
        assert found.update_ratio == pytest.approx(update / weights, rel=1e-4), "weights are rounded to fp32"
        if name in outputs:
            mean = sum(outputs[name]) / len(batches)
            assert found.activation_rms == pytest.approx(math.sqrt(mean), rel=1e-5)
        else:
            assert found.activation_rms is None


def test_a_step_that_changes_nothing_has_no_update():
    run = matrix_run("untied", data=EVEN)
    engine = tiny_engine(run)
    statistics = Statistics(engine, run, torch.device("cpu"))
    batches = micro_batches(global_batch(0, run), 2)
    result, groups = statistics.train_step(batches, 1e-2, loss_limit=0.1)
    assert result.refused and all(numbers.update_ratio == 0 for numbers in groups.values())
    result, groups = statistics.train_step(batches, 1e-2)
    assert not result.refused and all(numbers.update_ratio > 0 for numbers in groups.values())


class Deep:
    layers_name, before_layers = "model.layers", ("model.embed_tokens",)


def test_groups_stay_few_and_hold_every_layer_once():
    groups = Groups(Deep, 126, 8)
    assert groups.names[:3] == ["embedding", "layers.0-15", "layers.16-31"]
    assert groups.names[-2:] == ["layers.112-125", "head"] and len(groups.names) == 10
    for index in range(126):
        name = groups.names[groups.of_parameter(f"model.layers.{index}.mlp.up_proj.weight")]
        first, last = map(int, name.removeprefix("layers.").split("-"))
        assert first <= index <= last
    assert groups.of_parameter("model.embed_tokens.weight") == 0
    assert groups.of_parameter("model.norm.weight") == groups.of_parameter("lm_head.weight") == 9
    assert Groups(Deep, 3, 8).names == ["embedding", "layers.0", "layers.1", "layers.2", "head"]


def test_sums_of_many_chunks(monkeypatch):
    monkeypatch.setattr("megaxf.engine.statistics.CHUNK", 7)
    values = torch.arange(60.0).view(12, 5)
    for one in (values, values.flatten(), values[:, 1:4], values.view(3, 4, 5), torch.tensor(3.0)):
        assert square_sum(one).item() == one.double().square().sum().item()

"""What tensor parallelism must not change, piece by piece: initial weights, losses, replicated tensors, dropout."""

import math

import pytest
import torch

from megaxf.models.initialize import initialize
from megaxf.models.registry import family
from megaxf.parallel.apply import blank_model, materialise, place
from megaxf.parallel.boxes import share_pieces
from megaxf.parallel.collectives import gather_objects, sum_tensor
from tests.distributed.tiny import global_batch, own_rows, tiny_engine, tiny_mesh, train_steps, write_all
from tests.parity.matrix import matrix_run

TENSOR, SEQUENCE = {"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "sequence_parallel": True}


def placed_model(run):
    placed = place(run, tiny_mesh(run))
    materialise(placed, run.seed, "cpu")
    return placed


def gathered_weights(parallel, model):
    placed = placed_model(matrix_run(model, parallel=parallel))
    axis = placed.mesh.axis("tensor")
    whole = {name: torch.zeros(shape) for name, shape in placed.shapes.items()}
    for name, weight in placed.weights.items():
        share = {"master": weight.detach().flatten()}
        for piece in share_pieces(name, placed.shapes[name], placed.cuts[name], axis, 0, share):
            if piece.copy == 0:
                piece.box_in(whole[name]).copy_(piece.values)
        sum_tensor(whole[name], axis)
    return whole


@pytest.mark.parametrize("model", ["untied", "tied", "one kv head"])
def test_initial_weights_do_not_depend_on_the_layout(run_on, model):
    run = matrix_run(model)
    whole = family("llama").Model(run.model)
    initialize(whole, run.seed)
    expected = dict(whole.named_parameters())
    for ranks, parallel in ((2, TENSOR), (4, {"tensor_parallel_size": 4})):
        for weights in run_on(ranks, gathered_weights, parallel, model):
            assert list(weights) == list(expected)
            for name, weight in weights.items():
                assert torch.equal(weight, expected[name]), name
    layers = [expected[f"model.layers.{layer}.self_attn.q_proj.weight"] for layer in range(2)]
    assert not torch.equal(*layers)


def test_blank_model_holds_nothing():
    assert all(weight.is_meta for weight in blank_model(matrix_run()).parameters())


def loss_of_zeros(ranks):
    """The loss on each rank where every weight is 0, of a vocabulary of 61 that no degree divides."""
    run = matrix_run(parallel={"tensor_parallel_size": ranks, "sequence_parallel": ranks == 2}, train={"z_loss": 0.0})
    engine = tiny_engine(run)
    write_all(engine, {name: {"master": torch.zeros(shape)} for name, shape in engine.state_shapes().items()})
    nll, tokens = engine.evaluate(own_rows(global_batch(0), tiny_mesh(run)))
    return nll / tokens


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_that_fill_up_the_vocabulary_have_no_probability(run_on, ranks):
    assert run_on(ranks, loss_of_zeros, ranks) == pytest.approx([math.log(61)] * ranks, abs=1e-6)


def replicated_after_five_steps(parallel, precision):
    """Names of the tensors that the tensor-parallel ranks both hold, with whether they are equal bit by bit."""
    run = matrix_run("one kv head", parallel=parallel, train={"precision": precision, "dropout": 0.1})
    engine = tiny_engine(run)
    train_steps(engine, run, range(5))
    placed, mesh = engine._placed, tiny_mesh(run)
    same = {}
    for name, weight in placed.weights.items():
        if placed.cuts[name].parts == 1:
            first, *others = gather_objects(weight.detach(), mesh)
            same[name] = all(torch.equal(first, other) for other in others)
    return same


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parallel", [TENSOR, SEQUENCE], ids=["tensor", "sequence"])
def test_replicated_tensors_stay_equal_bit_by_bit(run_on, parallel, precision):
    (same, _) = run_on(2, replicated_after_five_steps, parallel, precision)
    assert "model.norm.weight" in same and "model.layers.1.self_attn.k_norm.weight" in same
    assert "model.layers.0.self_attn.k_proj.weight" in same, "one key/value head is on both ranks"
    assert all(same.values()), [name for name, equal in same.items() if not equal]


def padding_after_five_steps():
    engine = tiny_engine(run := matrix_run("tied", parallel={"tensor_parallel_size": 4}))
    train_steps(engine, run, range(5))
    table = engine._placed.weights["model.embed_tokens.weight"].detach()
    rank = tiny_mesh(run).axis("tensor").rank
    return table.shape, table[61 - 48 :].abs().max().item() if rank == 3 else 0.0


def test_rows_that_fill_up_the_vocabulary_stay_zero(run_on):
    assert run_on(4, padding_after_five_steps) == [((16, 36), 0.0)] * 4


def dropout_curve(parallel, recompute):
    run = matrix_run(parallel=parallel, train={"dropout": 0.3, "recompute": recompute})
    engine = tiny_engine(run)
    return [(result.loss, result.grad_norm) for result in train_steps(engine, run, range(4))]


def test_dropout_does_not_depend_on_the_layout_or_recomputation(run_on):
    (plain,) = run_on(1, dropout_curve, {}, "none")
    assert abs(plain[0][0] - math.log(61)) < 0.2
    (full,) = run_on(1, dropout_curve, {}, "full")
    assert full == plain, "recomputation repeats the same masks bit by bit"
    for parallel, recompute in ((TENSOR, "none"), (SEQUENCE, "full"), ({}, "selective")):
        for curve in run_on(2, dropout_curve, parallel, recompute):
            torch.testing.assert_close(torch.tensor(curve), torch.tensor(plain), rtol=1e-5, atol=0)

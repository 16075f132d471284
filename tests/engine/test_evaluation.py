"""Evaluation and the whole model for inference: right sums, and training goes on as if they had not happened."""

import pytest
import torch

from megaxf.engine import TorchBatch
from megaxf.models.registry import family
from tests.distributed.tiny import global_batch, read_all, tiny_engine, tiny_run, train_steps


def rows_of(batch, start, stop):
    return TorchBatch(*(part[start:stop] for part in batch[:2]))


@torch.no_grad()
def nll_by_formula(model, batch):
    """(sum of negative log-likelihoods, number of targets) from whole logits."""
    log_probabilities = torch.log_softmax(model(batch.tokens) @ model.head_weight().T, -1)
    labels = batch.labels.flatten()
    nll = torch.nn.functional.nll_loss(log_probabilities.flatten(0, 1), labels, reduction="sum")
    return nll.item(), int((labels != -100).sum())


def six_steps(stage, precision, disturbed):
    """(losses, state, evaluations): with evaluation and inference after step 3 or without."""
    run = tiny_run(train={"precision": precision}, engine={"zero_stage": stage})
    engine = tiny_engine(run)
    numbers = train_steps(engine, run, range(3))
    evaluations = []
    if disturbed:
        batch = global_batch(50)
        evaluations = [[engine.evaluate(rows_of(batch, r, r + 1)) for r in range(7)] for _ in range(2)]
        with engine.model_for_inference() as model:
            assert not model.training
            weights = {name: weight.float() for name, weight in model.state_dict().items()}
        assert model.training
        oracle = family("llama").Model(run.model).eval()
        oracle.load_state_dict(weights)
        evaluations.append(nll_by_formula(oracle, rows_of(batch, 0, 7)))
    return numbers + train_steps(engine, run, range(3, 6)), read_all(engine), evaluations


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_evaluation_is_right_and_leaves_no_trace(ranks2, stage, precision):
    plain = ranks2(six_steps, stage, precision, False)
    disturbed = ranks2(six_steps, stage, precision, True)
    for (numbers, state, _), (numbers_with, state_with, evaluations) in zip(plain, disturbed, strict=True):
        first, second, (nll, count) = evaluations
        assert first == second
        assert sum(part[1] for part in first) == count
        assert sum(part[0] for part in first) == pytest.approx(nll, rel=1e-6 if precision == "fp32" else 2e-3)
        assert numbers == numbers_with
        for name, tensors in state.items():
            assert all(torch.equal(state_with[name][key], tensor) for key, tensor in tensors.items()), name

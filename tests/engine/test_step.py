"""One step against the formulas, written out in float64."""

import pytest
import torch

from megaxf.models.initialize import initialize
from megaxf.models.registry import family
from tests.distributed.tiny import global_batch, read_all, tiny_engine, tiny_run, train_steps, write_all

RATE, BETAS, EPS, DECAY, CLIP, Z_LOSS = 3e-3, (0.9, 0.95), 1e-4, 0.1, 0.6, 1e-2


def settings(stage=0, precision="fp32"):
    return tiny_run(
        train={"gradient_clip": CLIP, "z_loss": Z_LOSS, "precision": precision},
        optimizer={"betas": list(BETAS), "eps": EPS, "weight_decay": DECAY},
        engine={"zero_stage": stage},
    )


def steps_of_an_engine(stage):
    run = settings(stage)
    engine = tiny_engine(run)
    results = train_steps(engine, run, range(3), RATE)
    return results, {name: tensors["master"] for name, tensors in read_all(engine).items()}


def steps_by_formula():
    """AdamW (arXiv 1711.05101, algorithm 2 with decay times rate) on the mean over counted targets, in float64."""
    run = settings()
    model = family("llama").Model(run.model)
    initialize(model, run.seed)
    model.double()
    weights = dict(model.named_parameters())
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    results = []
    for step in range(3):
        batch = global_batch(step)
        logits = model(batch.tokens) @ model.head_weight().T
        counted = batch.labels != -100
        log_partition = torch.logsumexp(logits, -1)
        target = logits.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
        nll = (log_partition - target)[counted].mean()
        z_loss = Z_LOSS * (log_partition**2)[counted].mean()
        gradients = torch.autograd.grad(nll + z_loss, list(weights.values()))
        norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
        results.append((nll.item(), z_loss.item(), norm.item(), int(counted.sum())))
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            gradient = gradient * min(1.0, CLIP / norm.item())
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * gradient
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * gradient**2
            mean = first[name] / (1 - BETAS[0] ** (step + 1))
            spread = second[name] / (1 - BETAS[1] ** (step + 1))
            decay = DECAY if weight.dim() > 1 else 0.0
            with torch.no_grad():
                weight -= RATE * (mean / (spread.sqrt() + EPS) + decay * weight)
    return results, {name: weight.detach() for name, weight in weights.items()}


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_steps_follow_the_formulas(run_on, ranks, stage):
    expected, expected_weights = steps_by_formula()
    assert all(norm > CLIP for _, _, norm, _ in expected)
    results, weights = run_on(ranks, steps_of_an_engine, stage)[0]
    for (loss, z_loss, norm, tokens), result in zip(expected, results, strict=True):
        assert result.loss == pytest.approx(loss, rel=1e-6)
        assert result.z_loss == pytest.approx(z_loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(norm, rel=1e-5)
        assert result.tokens == tokens
    for name, weight in weights.items():
        torch.testing.assert_close(weight.double(), expected_weights[name], rtol=0, atol=3e-6, msg=name)


def clipped_gradient(stage):
    """Length of the clipped gradient that AdamW got in the first step, and the norm that was reported."""
    run = settings(stage)
    engine = tiny_engine(run)
    (result,) = train_steps(engine, run, range(1), RATE)
    moments = [tensors["exp_avg"] / (1 - BETAS[0]) for tensors in read_all(engine).values()]
    return torch.cat([moment.flatten() for moment in moments]).norm().item(), result.grad_norm


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_clipped_gradient_has_the_length_asked_for(ranks2, stage):
    for length, norm in ranks2(clipped_gradient, stage):
        assert norm > 1.1 * CLIP
        assert length == pytest.approx(CLIP, rel=1e-5)


def poisoned_step(stage, precision):
    """A weight of rank 1 is not a number (with ZeRO 3, which shares weights, on both ranks).

    (norm, updates counted, other weights unchanged, norm of a step after repair, updates counted)
    """
    run = settings(stage, precision)
    engine = tiny_engine(run)
    state = read_all(engine)
    name = "model.layers.0.mlp.up_proj.weight"
    if stage == 3:
        write_all(engine, {name: {"master": torch.full_like(state[name]["master"], float("nan"))}})
    elif torch.distributed.get_rank() == 1:
        with engine.model_for_inference() as model:
            model.get_parameter(name).data.fill_(float("nan"))
    (result,) = train_steps(engine, run, range(1))
    count = engine.optimizer_step
    after = read_all(engine)
    unchanged = all(torch.equal(after[n]["master"], state[n]["master"]) for n in state if n != name)
    write_all(engine, {name: state[name]})
    (repaired,) = train_steps(engine, run, range(1))
    return result.grad_norm, count, unchanged, repaired.grad_norm, engine.optimizer_step


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_gradient_that_is_not_finite_changes_nothing(ranks2, stage, precision):
    for norm, count, unchanged, repaired, count_after in ranks2(poisoned_step, stage, precision):
        assert (norm, count, unchanged) == (float("inf"), 0, True)
        assert 0.5 < repaired < 2
        assert count_after == 1

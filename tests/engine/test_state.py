"""What is read from an engine and written into a fresh one continues the run: bit-equal at the same layout."""

import pytest
import torch

from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_run, train_steps, write_all


def make(stage, precision):
    run = tiny_run(train={"precision": precision, "gradient_clip": 0.7}, engine={"zero_stage": stage})
    return run, tiny_engine(run)


def straight_and_resumed(stage, precision):
    """Numbers of steps 3 to 5, evaluation and final state: of a straight run, and of runs stopped at 0 and 3."""
    run, engine = make(stage, precision)
    states = {0: read_all(engine)}
    numbers = train_steps(engine, run, range(3))
    states[3] = read_all(engine)
    numbers += train_steps(engine, run, range(3, 6))
    runs = [(numbers[3:], engine.evaluate(own_rows(global_batch(9))), read_all(engine))]
    for stop, state in states.items():
        _, engine = make(stage, precision)
        if stop == 0:
            train_steps(engine, run, range(7, 8))  # what is there has to be overwritten; at 3 nothing is there yet
        write_all(engine, state, stop)
        assert engine.optimizer_step == stop
        resumed = train_steps(engine, run, range(stop, 6))
        runs.append((resumed[-3:], engine.evaluate(own_rows(global_batch(9))), read_all(engine)))
    return states, runs


@pytest.mark.parametrize(
    ("ranks", "stage", "precision"),
    [(1, 0, "fp32"), (2, 3, "fp32"), (1, 3, "bf16"), *((2, stage, "bf16") for stage in range(4))],
)
def test_resumed_runs_are_bit_equal(run_on, ranks, stage, precision):
    for states, runs in run_on(ranks, straight_and_resumed, stage, precision):
        assert {frozenset(tensors) for tensors in states[0].values()} == {frozenset({"master"})}
        assert {frozenset(tensors) for tensors in states[3].values()} == {
            frozenset({"master", "exp_avg", "exp_avg_sq"})
        }
        assert {tensor.dtype for tensors in states[3].values() for tensor in tensors.values()} == {torch.float32}
        (numbers, evaluation, state), *resumed_runs = runs
        for resumed_numbers, resumed_evaluation, resumed_state in resumed_runs:
            assert resumed_numbers == numbers
            assert resumed_evaluation == evaluation
            for name, tensors in state.items():
                for key, tensor in tensors.items():
                    assert torch.equal(resumed_state[name][key], tensor), f"{name} {key}"

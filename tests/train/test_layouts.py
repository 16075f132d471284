"""A run that changes its layout at every stop: saved by one, loaded by the next (field reports 70 and 75 to 80)."""

import pytest

from tests.train.kit import checkpoints, column, records, start, tiny_run, weights, write_data

TENSOR = {"parallel": {"tensor_parallel_size": 2, "sequence_parallel": True}, "engine": {"zero_stage": 0}}
DATA = {"engine": {"zero_stage": 1}}
CONTEXT = {"parallel": {"context_parallel_size": 2}, "engine": {"zero_stage": 3}}
PIPELINE = {"parallel": {"pipeline_parallel_size": 2}, "engine": {"zero_stage": 1}}
TENSOR_ZERO = {"parallel": {"tensor_parallel_size": 2}, "engine": {"zero_stage": 2}}
ALONE = {}


def go_on(run, stop_after):
    return start(run, stop_after=stop_after)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """10 steps in one process on the reference engine, evaluated at the start and the end."""
    folder = tmp_path_factory.mktemp("straight")
    write_data(folder / "data")
    run = tiny_run(folder, **SETTINGS)
    start(run)
    return run


SETTINGS = {"train": {"steps": 10, "dropout": 0.1}, "optimizer": {"eps": 1e-6}, "evaluate": {"every": 2}}


@pytest.mark.parametrize(
    "layouts",
    [
        [TENSOR, DATA, TENSOR_ZERO, ALONE, TENSOR],
        [DATA, CONTEXT, TENSOR, CONTEXT, DATA],
        [PIPELINE, TENSOR, PIPELINE, DATA, PIPELINE],
    ],
    ids=["tensor-data", "context", "pipeline"],
)
def test_losses_and_weights_are_those_of_one_process(make, run_on, straight, layouts):
    for stop, layout in enumerate(layouts, start=1):
        run = make(**SETTINGS, **layout)
        run_on(1 if layout is ALONE else 2, go_on, run, 2)
        assert checkpoints(run)[-1] == 2 * stop
    assert column(run, "step") == list(range(1, 11))
    assert column(run, "tokens") == column(straight, "tokens")
    for name in ("loss", "gradient_norm"):
        assert column(run, name) == pytest.approx(column(straight, name), rel=1e-5), name
    found, expected = ([record["loss"] for record in records(r, "evaluation")] for r in (run, straight))
    assert found == pytest.approx(expected, rel=1e-5)
    theirs = weights(straight)
    for name, weight in weights(run).items():
        assert (weight - theirs[name]).norm() <= 1e-5 * theirs[name].norm(), name


def test_a_change_of_layout_is_announced(make, run_on):
    run_on(2, go_on, make(**DATA), 1)
    said = run_on(2, go_on, make(**TENSOR), 1)[0][1]
    for change in ("parallel.tensor_parallel_size has changed: 1 -> 2", "engine.zero_stage has changed: 1 -> 0"):
        assert f"{change}; the losses go on as they would have, but for rounding" in said

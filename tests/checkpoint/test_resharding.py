"""Saved under one layout, loaded under another: the same state and the same run (field reports 70, 75, 76).

Rows of no tensor divide by two, the table is tied (on a pipeline: over stages) and filled up on two tensor-parallel
ranks, which share one key/value head.
"""

import pytest
import torch

from megaxf.checkpoint import load_latest, read_weights, save
from tests.distributed.tiny import read_all, tiny_engine, tiny_mesh, tiny_run, train_steps

MODEL = {
    "hidden_size": 33,
    "intermediate_size": 46,
    "num_key_value_heads": 1,
    "num_hidden_layers": 5,
    "qk_norm": True,
    "tie_word_embeddings": True,
}
PIPELINE = {"pipeline_parallel_size": 2}
DUALPIPEV = {**PIPELINE, "pipeline_schedule": "dualpipev"}
TENSOR = {"tensor_parallel_size": 2}
LAYOUTS = {
    "one process": (1, 0, {}),
    "tensor": (2, 0, TENSOR),
    "1F1B": (2, 1, PIPELINE),
    "DualPipeV": (2, 1, DUALPIPEV),
    "ZeRO 1": (2, 1, {}),
    "ZeRO 2": (2, 2, {}),
    "ZeRO 3": (2, 3, {}),
    "tensor x pipeline": (4, 1, TENSOR | PIPELINE),
    "data": (2, 0, {}),
    "tensor x ZeRO 2": (4, 2, TENSOR),
    "interleaved": (2, 1, {**PIPELINE, "pipeline_schedule": "interleaved"}),
}
"""Ranks, ZeRO stage, degrees."""
MATRIX = list(LAYOUTS)[:8]
"""Every one of these is to be loaded under every other."""
NEXT = dict(zip(LAYOUTS, [*list(LAYOUTS)[1:], "one process"], strict=True))
BEFORE, AFTER = range(3), range(3, 8)
RATE = 3e-4


def built(name):
    _, stage, parallel = LAYOUTS[name]
    run = tiny_run(
        MODEL,
        train={"gradient_clip": 0.7},
        optimizer={"eps": 1e-6},
        engine={"zero_stage": stage},
        parallel=parallel,
    )
    return run, tiny_engine(run), tiny_mesh(run)


def saved(name, folder):
    """State at the save, (loss, norm) of the five steps after it, final state."""
    run, engine, mesh = built(name)
    train_steps(engine, run, BEFORE, RATE)
    save(folder, len(BEFORE), engine, {"samples": 24}, mesh)
    state = read_all(engine)
    return state, numbers(train_steps(engine, run, AFTER, RATE)), read_all(engine)


def loaded(name, folder):
    """The same of a run that goes on from there."""
    run, engine, mesh = built(name)
    extra = load_latest(folder, engine, mesh)
    assert (extra["step"], extra["samples"], engine.optimizer_step) == (3, 24, 3)
    state = read_all(engine)
    return state, numbers(train_steps(engine, run, AFTER, RATE)), read_all(engine)


def numbers(results):
    return torch.tensor([[result.loss, result.grad_norm] for result in results], dtype=torch.float64)


def equal(one, other):
    same_names = one.keys() == other.keys() and all(one[name].keys() == other[name].keys() for name in one)
    return same_names and all(torch.equal(one[name][part], other[name][part]) for name in one for part in one[name])


def check(run_on, folder, straight, source, target):
    """What was saved under `source` is loaded, and goes on, under `target`."""
    at_save, expected, final = straight
    for state, found, end in run_on(LAYOUTS[target][0], loaded, target, folder):
        assert equal(state, at_save), (source, target)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        if source == target:
            assert torch.equal(found, expected) and equal(end, final), source


@pytest.mark.parametrize("source", LAYOUTS)
def test_goes_on_under_its_own_layout_and_another(run_on, tmp_path, source):
    straight = run_on(LAYOUTS[source][0], saved, source, str(tmp_path))[0]
    assert all(part.count_nonzero() for tensors in straight[0].values() for part in tensors.values())
    for target in (source, NEXT[source]):
        check(run_on, str(tmp_path), straight, source, target)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", MATRIX)
def test_every_layout_loads_under_every_other(run_on, tmp_path, source):
    straight = run_on(LAYOUTS[source][0], saved, source, str(tmp_path))[0]
    for target in MATRIX:
        check(run_on, str(tmp_path), straight, source, target)


def test_files_hold_each_element_once(run_on, tmp_path):
    """Also of what several ranks hold: 12 bytes for each of the parameters, and no rank has written all."""
    for name in ("data", "tensor x pipeline"):
        run_on(LAYOUTS[name][0], saved, name, str(tmp_path / name))
        folder = tmp_path / name / "step-00000003"
        elements = sum(shape.numel() for shape in read_weights(folder).shapes.values())
        sizes = dict.fromkeys(range(LAYOUTS[name][0]), 0)
        for path in folder.glob("tensors/*.distcp"):
            sizes[int(path.name.split("_")[2])] += path.stat().st_size
        assert 12 * elements < sum(sizes.values()) < 12 * elements + 2**20
        assert max(sizes.values()) < 0.7 * sum(sizes.values()), sizes

"""Calibration on made-up times: it finds the machine that they are of. Nothing is timed."""

import dataclasses

import numpy as np
import pytest
import torch

from megaxf.parallel.mesh import build_mesh
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.step import predict
from megaxf.train import calibrate as module


def fake_seconds(monkeypatch, times):
    """Every measurement takes the next of `times`, and does no work."""
    queue = iter(times)
    monkeypatch.setattr(module, "seconds", lambda *_, **__: next(queue))


def test_products_give_rate_and_edge(monkeypatch):
    shapes = np.array(module.SHAPES["cpu"], float)
    times = 2 * shapes.prod(axis=1) / 3e11 * (1 + 40 / shapes).prod(axis=1)
    fake_seconds(monkeypatch, times)
    peak, edge = module._products(module.SHAPES["cpu"], torch.float32, torch.device("cpu"))
    assert peak == pytest.approx(3e11, rel=0.02)
    assert edge == pytest.approx(40, rel=0.06)


def test_attention_counts_the_products_that_are_made(monkeypatch):
    fake_seconds(monkeypatch, [2.0])
    pairs = 512 * 513 / 2 + 512 * 128 / 2
    assert module._attention(torch.float32, torch.device("cpu")) == pytest.approx(3.5 * 4 * 8 * 64 * pairs / 2)


def test_steps_set_the_levels(monkeypatch):
    """A machine whose operators take, within a step, so many times what they take alone."""
    monkeypatch.setattr(module, "seconds", lambda *_, **__: 1e-3)
    mesh, device = build_mesh(), torch.device("cpu")
    factors = {"matrices": 2.0, "attention": 0.7, "memory": 3.0}
    monkeypatch.setattr(module, "_levels", lambda *_: dict.fromkeys(factors, 1.0))
    alone = module.calibrate(mesh, device, "fp32", 1)
    inside = {**alone.measured, **{name: alone.measured[name] / factor for name, factor in factors.items()}}
    truth = dataclasses.replace(alone, measured=inside)
    monkeypatch.undo()
    monkeypatch.setattr(module, "seconds", lambda *_, **__: 1e-3)
    monkeypatch.setattr(module, "step_seconds", lambda run, *_: float(predict(layout(run, 1), truth).seconds))
    found = module.calibrate(mesh, device, "fp32", 1)
    assert found.measured == pytest.approx(inside, rel=1e-6)
    assert found.node_size == 1
    assert found.network_bandwidth is None


def test_no_level_is_beyond_reason(monkeypatch):
    """Times that contradict each other, as on a busy machine, still give speeds above nothing."""
    monkeypatch.setattr(module, "seconds", lambda *_, **__: 1e-3)
    steps = iter([1e-6, 1e3, 1e-6, 1e3])
    monkeypatch.setattr(module, "step_seconds", lambda *_: next(steps))
    found = module.calibrate(build_mesh(), torch.device("cpu"), "fp32", 1).measured
    for name in ("matrices", "attention", "memory"):
        assert 1 / module.SLOWEST * 0.999 <= found[name] <= 1 / module.FASTEST * 1.001


def test_seconds_are_those_of_the_work(monkeypatch):
    """The median of the rounds, without the two that warm up."""
    clock = iter([0.0, 9, 18, 19, 20, 25, 26, 29])  # two that warm up, then 1, 5 and 3
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    assert module.seconds(lambda: None, torch.device("cpu"), rounds=3) == 3

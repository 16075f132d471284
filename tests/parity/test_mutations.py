"""The equality matrix finds faults: each one planted here makes a cell differ from the one-process curve.

A fault is a name, the layout that shows it, and what is put in the place of something in the code. The same cells
without the fault pass (tests/parity/test_matrix.py), and here too, so that it is the fault that is found.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import pytest

from tests.parity.matrix import assert_same, curve

STEPS = 3
TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}


class Fault(NamedTuple):
    """What is planted: `place`, a dotted name, is replaced by `make(original)`."""

    place: str
    make: Callable[[Any], Any]
    parallel: dict[str, Any]
    model: str = "untied"
    zero_stage: int = 0


def identity(x, axis):
    return x


def without(kind):
    """partial_gradients that forgets the parameters whose name holds `kind`."""
    return lambda original: (
        lambda *arguments: {name: axis for name, axis in original(*arguments).items() if kind not in name}
    )


def own_count_only(original):
    """Sums whose scale is the mean of the ranks' means."""

    def start(self, batches, idle_rows, axis, *rest):
        original(self, batches, idle_rows, axis, *rest)
        self.scale = 1 / (axis.size * max(1, sum(batch.counted() for batch in batches)))

    return start


def with_all_rows(original):
    def start(self, axis, size):
        original(self, axis, size)
        self.rows = -(-size // axis.size)

    return start


def from_zero(original):
    def start(self, axis, size):
        original(self, axis, size)
        self.first = 0

    return start


def without_rescaling(original):
    def combine(self, statistics):
        import torch.distributed as dist

        total = statistics[1].clone()
        dist.all_reduce(total)
        whole = original(self, statistics)
        whole[1] = total
        return whole

    return combine


def alone(original):
    def start(self, counted, axis):
        from megaxf.parallel.mesh import Axis

        original(self, counted, Axis("alone", 0, (0,), None))

    return start


FAULTS = {
    "gradients of norms on shares of the sequence are not summed": Fault(
        "megaxf.parallel.apply.partial_gradients", without("layernorm"), SEQUENCE
    ),
    "gradients of norms over heads are not summed": Fault(
        "megaxf.parallel.apply.partial_gradients", without("q_norm"), TENSOR, "one kv head"
    ),
    "gradients of a replicated key head are not summed": Fault(
        "megaxf.parallel.apply.partial_gradients", without("k_proj"), TENSOR, "one kv head"
    ),
    "replicated weights count on every rank in the norm": Fault(
        "megaxf.engine.reference.is_counted", lambda original: lambda placed, names: set(names), TENSOR
    ),
    "a rank clips by its own part of the gradient": Fault("megaxf.engine.gradient.Norm.__init__", alone, TENSOR),
    "mean of means over ranks": Fault("megaxf.engine.objective.Sums.__init__", own_count_only, {}),
    "rows that fill up the vocabulary enter the softmax": Fault(
        "megaxf.parallel.loss.VocabularyShare.__init__", with_all_rows, TENSOR
    ),
    "targets are looked up at the first rank's offset": Fault(
        "megaxf.parallel.loss.VocabularyShare.__init__", from_zero, TENSOR
    ),
    "exponentials of ranks are added without their maxima": Fault(
        "megaxf.parallel.loss.VocabularyShare.combine", without_rescaling, TENSOR, "large"
    ),
    "the parts of a row-parallel product are not summed": Fault(
        "megaxf.parallel.tensor.reduce_from", lambda original: identity, TENSOR
    ),
    "the gradient of hidden states is not summed before the head": Fault(
        "megaxf.parallel.loss.copy_to", lambda original: identity, TENSOR
    ),
}


def cell(name, planted):
    fault = FAULTS[name]
    with ExitStack() as stack:
        if planted:
            stack.enter_context(mock.patch(fault.place, fault.make(original_of(fault.place))))
        return curve(fault.model, steps=STEPS, parallel=fault.parallel, engine={"zero_stage": fault.zero_stage})


def original_of(place):
    import pkgutil

    return pkgutil.resolve_name(place)


def one_process(model):
    return curve(model, steps=STEPS, train={"micro_batch_size": 4})


SHORT = ("gradients of norms over heads are not summed", "mean of means over ranks")
"""Those that `make test` plants; the others are `long`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in FAULTS]
)
def test_the_matrix_finds(run_on, name):
    expected = run_on(1, one_process, FAULTS[name].model)[0]
    assert_same(run_on(2, cell, name, False)[0], expected, 1e-5)
    with pytest.raises(AssertionError):
        assert_same(run_on(2, cell, name, True)[0], expected, 1e-5)

"""`train.compile` under every layout: the curve of one process without it, 1e-5 relative in fp32.

aot_eager captures and splits the same graphs as inductor and saves the time to compile them; `make test-all` compiles.
"""

from functools import partialmethod

import pytest
import torch

from tests.parity.matrix import assert_same, curve
from tests.parity.test_matrix import LAYOUTS, RECOMPUTE

MODEL = "five layers"
STEPS = 4
KINDS = [
    ("TP 2", "none"),
    ("TP 2 + SP", "selective"),
    ("TP 2 + SP", "full"),
    ("CP 2", "none"),
    ("DP 2, ZeRO 2", "selective"),
    ("DP 2, ZeRO 3", "none"),
    ("TP 2 + SP x DP 2, ZeRO 3", "none"),
    ("PP 2, 1f1b", "none"),
    ("PP 2, interleaved", "full"),
    ("PP 2, dualpipev", "none"),
    ("PP 2 x TP 2 + SP, 1f1b", "selective"),
    ("CP 2 x TP 2 + SP x DP 2", "none"),
]
IN_SHORT = ("TP 2 + SP", "PP 2, 1f1b")


def cells():
    """Each kind with both backends; those that `make test` leaves out are marked `long`."""
    for layout, recompute in KINDS:
        for backend in ("aot_eager", "inductor"):
            short = backend == "aot_eager" and layout in IN_SHORT and recompute != "full"
            marks = [] if short else [pytest.mark.long]
            yield pytest.param(layout, recompute, backend, id=f"{layout}-{recompute}-{backend}", marks=marks)


def compiled(backend, parallel, stage, train):
    """The curve with each layer compiled by this backend, and how many graphs were made."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    compile_module = torch.nn.Module.compile
    torch.nn.Module.compile = partialmethod(compile_module, backend=backend)
    try:
        return plain(parallel, stage, train | {"compile": True}), counters["stats"]["unique_graphs"]
    finally:
        torch.nn.Module.compile = compile_module


def plain(parallel, stage, train):
    return curve(
        MODEL, STEPS, data={"sequence_length": 16}, parallel=parallel, engine={"zero_stage": stage}, train=train
    )


@pytest.fixture(scope="module")
def one_process(run_on):
    return run_on(1, plain, {}, 0, {"micro_batch_size": 4})[0]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("layout", "recompute", "backend"), list(cells()))
def test_compiled(run_on, one_process, layout, recompute, backend):
    ranks, parallel, stage = LAYOUTS[layout]
    train = {"micro_batch_size": 1 if "PP 2 x DP 2" in layout else 2} | RECOMPUTE[recompute]
    for got, graphs in run_on(ranks, compiled, backend, parallel, stage, train, timeout=1500):
        assert graphs > 0
        assert_same(got, one_process, 1e-5)

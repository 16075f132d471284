"""Bytes of collectives against published volumes, and the links that they cross."""

from dataclasses import replace

import numpy as np
import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.parameters import count
from megaxf.plan.throughput import collectives
from megaxf.plan.throughput.collectives import links
from megaxf.plan.throughput.constants import CALIBRATED
from megaxf.plan.throughput.hardware import find
from megaxf.plan.throughput.layout import Layout
from tests.plan.digits import Printed
from tests.plan.shapes import shape

LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)
PERFECT = CALIBRATED["hopper"]._replace(link=1.0, network=1.0, hop_seconds=0.0)


def test_gradients_of_llama3_8b():
    """Ring all-reduce and FSDP's three passes (arXiv 1910.02054, section 7), in bf16."""
    size = 2 * count(LLAMA3_8B).total
    assert [collectives.reduce_bytes(size, ranks) for ranks in (8, 64)] == [28105914368, 31619153664]
    assert [3 * collectives.gather_bytes(size, ranks) for ranks in (8, 64)] == [42158871552, 47428730496]
    seconds = [collectives.reduce_bytes(size, ranks) / 50e9 for ranks in (8, 64)]
    assert seconds == [Printed("0.562"), Printed("0.632")]


def test_tensor_context_and_pipeline_volumes():
    """Of one layer of Llama 3 8B over a sequence of 8,192 (arXiv 1909.08053; ring attention, arXiv 2310.01889)."""
    moved = [collectives.tensor_bytes(8192, 4096, ranks) for ranks in (2, 4, 8)]
    assert moved == [268435456, 402653184, 469762048]
    assert [1e3 * sent / 450e9 for sent in moved] == [Printed("0.60"), Printed("0.89"), Printed("1.04")]
    assert collectives.boundary_bytes(8192, 4096) == 67108864
    assert Printed("1.34") == 1e3 * 67108864 / 50e9
    assert collectives.context_bytes(8192 // 4, 1024, 4) == 25165824


def layout(**cut):
    return Layout(LLAMA3_8B, 8192, global_batch_size=1024, **cut)


def test_axes_lie_where_the_mesh_puts_them():
    paths = links(
        layout(world_size=128, tensor_parallel_size=4, context_parallel_size=2, pipeline_parallel_size=2),
        find("h100"),
        PERFECT,
    )
    groups = {name: (int(group.size), int(group.local)) for name, group in paths.groups.items()}
    assert groups == {"tensor": (4, 4), "context": (2, 2), "data": (8, 1), "pipeline": (2, 1), "replicas": (16, 2)}
    assert paths.seconds("tensor", 450e9) == 1  # within the node
    assert paths.seconds("data", 50e9) == 1  # between nodes, one port
    assert paths.seconds("replicas", 100e9) == 1  # two ports
    assert paths.neighbour(50e9) == 1


def test_order_decides_which_axis_is_inside():
    cut = layout(
        world_size=64,
        tensor_parallel_size=8,
        pipeline_parallel_size=8,
        order=("tensor", "data", "context", "pipeline"),
    )
    paths = links(cut, find("h100"), PERFECT)
    assert paths.seconds("tensor", 50e9) == 1
    assert paths.neighbour(450e9) == 1


def test_a_ring_is_no_faster_than_the_link():
    paths = links(layout(world_size=16), replace(find("h100"), network_bandwidth=100e9), PERFECT)
    assert paths.seconds("data", 450e9) == 1  # 8 x 100 is more than the 450 of the link


def test_one_rank_sends_nothing():
    paths = links(layout(world_size=1), find("rtx4090"), CALIBRATED["other"])
    assert all(paths.seconds(axis, 1e9, 5) == 0 for axis in paths.groups)
    assert paths.neighbour(1e9) == 0


def test_nodes_need_a_network():
    links(layout(world_size=8), find("rtx4090"), PERFECT)
    with pytest.raises(PlanError, match="16 ranks are more than the 8 of one node"):
        links(layout(world_size=16), find("rtx4090"), PERFECT)


def test_arrays_are_many_layouts():
    tensor = np.array([1, 2, 8])
    paths = links(layout(world_size=64, tensor_parallel_size=tensor), find("h100"), PERFECT)
    for place, ranks in enumerate(tensor):
        alone = links(layout(world_size=64, tensor_parallel_size=int(ranks)), find("h100"), PERFECT)
        for axis in ("tensor", "data", "replicas"):
            assert paths.seconds(axis, 1e9)[place] == alone.seconds(axis, 1e9)

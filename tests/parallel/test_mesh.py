"""The mesh of one process and of several, and what is said along its axes."""

import pytest
import torch
import torch.distributed as dist

from megaxf.parallel.collectives import barrier, broadcast_object, gather_objects, sum_numbers, sum_tensor
from megaxf.parallel.mesh import AXES, axis_sizes, build_mesh


def speak():
    mesh = build_mesh()
    axis = mesh.axis("data")
    rank = mesh.rank
    barrier(mesh)
    return {
        "place": (mesh.rank, mesh.world_size, mesh.data_rank, mesh.data_size, axis.rank, axis.size),
        "whole": axis.group is not None and axis.group is dist.group.WORLD,
        "numbers": sum_numbers([2**51 * (2 - rank) + rank, torch.tensor(0.5)], axis, "cpu"),
        "tensor": sum_tensor(torch.tensor([1, rank]), axis).tolist(),
        "broadcast": broadcast_object({"from": rank}, mesh),
        "gathered": gather_objects(f"rank {rank}", mesh),
    }


def test_one_process_without_torch_distributed(monkeypatch):
    # An earlier test of this process may have started it.
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    said = speak()
    assert said == {
        "place": (0, 1, 0, 1, 0, 1),
        "whole": False,
        "numbers": [float(2**52), 0.5],
        "tensor": [1, 0],
        "broadcast": {"from": 0},
        "gathered": ["rank 0"],
    }
    assert build_mesh().group is None


def test_two_processes(ranks2):
    for rank, said in enumerate(ranks2(speak)):
        assert said == {
            "place": (rank, 2, rank, 2, rank, 2),
            "whole": True,
            "numbers": [float(3 * 2**51 + 1), 1.0],
            "tensor": [2, 1],
            "broadcast": {"from": 0},
            "gathered": ["rank 0", "rank 1"],
        }


def test_degrees_have_to_multiply_to_the_ranks():
    assert axis_sizes({}, 6) == {"pipeline": 1, "data": 6, "context": 1, "tensor": 1}
    assert axis_sizes({"tensor": 3}, 6)["data"] == 2
    assert next(iter(axis_sizes({}, 6, ("data", "context", "pipeline", "tensor")))) == "data"
    with pytest.raises(ValueError, match="data 4 x context 1 x tensor 1 do not multiply to the number of ranks, 6"):
        axis_sizes({"data": 4}, 6)
    with pytest.raises(ValueError, match="the mesh cannot have context -2, tensor 0; a degree is 1 or more"):
        axis_sizes({"tensor": 0, "context": -2}, 6)
    with pytest.raises(ValueError, match="the mesh has no axis depth; it has pipeline, data, context, tensor"):
        build_mesh({"depth": 1})
    with pytest.raises(ValueError, match="the order data, tensor of the mesh does not name each of"):
        build_mesh(order=("data", "tensor"))


def places(degrees, order):
    mesh = build_mesh(degrees, order)
    axes = {name: axis.ranks for name, axis in mesh.axes.items()}
    total = sum_tensor(torch.tensor(mesh.rank), mesh.replicas).item()
    return axes | {"replicas": mesh.replicas.ranks, "parts": mesh.parts.ranks, "total": total}


def test_a_grid_of_eight(run_on):
    """Rank = ((pipeline * 1 + data) * 2 + context) * 2 + tensor."""
    per_rank = run_on(8, places, {"pipeline": 2, "context": 2, "tensor": 2}, AXES)
    assert per_rank[5] == {
        "pipeline": (1, 5),
        "data": (5,),
        "context": (5, 7),
        "tensor": (4, 5),
        "replicas": (5, 7),
        "parts": (0, 1, 4, 5),
        "total": 12,
    }


def test_another_order_of_the_axes(run_on):
    per_rank = run_on(4, places, {"pipeline": 2}, ("data", "context", "tensor", "pipeline"))
    assert per_rank[2]["pipeline"] == (2, 3)
    assert per_rank[2]["replicas"] == (0, 2) and per_rank[2]["total"] == 2

"""The mesh of one process and of several, and what is said along its axes."""

import pytest
import torch
import torch.distributed as dist

from megaxf.parallel.collectives import barrier, broadcast_object, gather_objects, sum_numbers, sum_tensor
from megaxf.parallel.mesh import _axis_sizes, build_mesh


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


def test_one_process_without_torch_distributed():
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
    assert _axis_sizes({}, 6) == {"data": 6}
    with pytest.raises(ValueError, match="data 4 do not multiply to the number of ranks, 6"):
        _axis_sizes({"data": 4}, 6)
    with pytest.raises(ValueError, match="the mesh has no axis depth; it has data"):
        build_mesh({"depth": 1})

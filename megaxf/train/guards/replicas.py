"""Do ranks that should hold the same weights hold the same bits? A flipped bit, or a fault of an engine, parts them."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping

import torch
import torch.distributed as dist

from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh
from megaxf.train.guards.agreement import any_rank


def compare_replicas(tensors: Mapping[str, torch.Tensor], mesh: Mesh, device: torch.device) -> str | None:
    """A sentence that names the first parameter which differs along `mesh.replicas`, and the ranks; collective.

    tensors: as `Engine.replicated` gives them. None: all are alike, on every rank. A hash of each tensor is compared
    in one message: all of their bits, as doubles, added without carrying.
    """
    if mesh.world_size == 1:
        return None
    names = list(tensors)
    found = [torch.hash_tensor(tensors[name].detach()).view(torch.int64) for name in names]
    hashes = torch.stack(found) if found else torch.zeros(0, dtype=torch.int64, device=device)
    differing = _differing(hashes, mesh)
    if not any_rank(mesh, device, bool(differing))[0]:
        return None
    own = {names[index]: int(hashes[index]) for index in differing[:1]}
    places = gather_objects((mesh.replicas.ranks, platform.node(), own), mesh)
    ranks, _, first = next(place for place in places if place[2])
    name = next(iter(first))
    of_rank = {rank: places[rank][2][name] for rank in ranks}
    return f"{name} is not the same on data-parallel ranks: {_blame(of_rank, [place[1] for place in places])}"


def _differing(hashes: torch.Tensor, mesh: Mesh) -> list[int]:
    """Which of the hashes are not the same along the replicas: the largest is not the smallest."""
    both = torch.stack([hashes, ~hashes])
    if mesh.replicas.size > 1 and len(hashes):
        dist.all_reduce(both, dist.ReduceOp.MAX, group=mesh.replicas.group)
    return (both[0] != ~both[1]).nonzero().flatten().tolist()


def _blame(hash_of: Mapping[int, int], hosts: list[str]) -> str:
    """Which ranks hold what most do not; all of them where no value has the majority."""
    (usual, times), *_ = Counter(hash_of.values()).most_common()
    odd = [rank for rank, value in hash_of.items() if value != usual]
    if 2 * times <= len(hash_of):
        odd = list(hash_of)
    shown = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in odd[:8]) + (", ..." if len(odd) > 8 else "")
    return f"{shown} of {len(hash_of)}" + ("" if 2 * times > len(hash_of) else ", none of which has a majority")

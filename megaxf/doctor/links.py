"""How fast ranks and hosts talk, and by how much their clocks differ. Every function is collective."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from megaxf.parallel.collectives import all_gather, barrier, gather_objects
from megaxf.parallel.mesh import Axis, Mesh

ROUNDS, PINGS = 5, 7


class Speed(NamedTuple):
    """Of one kind of message along one axis of the mesh, in the slowest of its groups."""

    axis: str
    message: str
    ranks: int
    """Of a group."""
    bytes_per_second: float
    """That each rank sends: (ranks - 1) / ranks of the tensor for a gather, twice as much for a sum."""
    slowest: tuple[int, ...]
    """The ranks of the slowest group."""


class Pair(NamedTuple):
    """Two hosts that sent to each other at once."""

    hosts: tuple[str, str]
    bytes_per_second: float
    """In each direction."""


def axis_speeds(mesh: Mesh, device: torch.device, size: int) -> list[Speed]:
    """Sums and gathers of `size` bytes along each axis that has several ranks, all groups at once, as in a run."""
    return [
        speed
        for axis in mesh.axes.values()
        if axis.size > 1
        for speed in (_sum_speed(axis, mesh, device, size), _gather_speed(axis, mesh, device, size))
    ]


def _sum_speed(axis: Axis, mesh: Mesh, device: torch.device, size: int) -> Speed:
    tensor = torch.zeros(size // 4, device=device)
    taken = _seconds(lambda: dist.all_reduce(tensor, group=axis.group), mesh, device)
    return _slowest(axis, mesh, "all-reduce", 2 * size * (axis.size - 1) / axis.size / taken)


def _gather_speed(axis: Axis, mesh: Mesh, device: torch.device, size: int) -> Speed:
    share = torch.zeros(size // 4 // axis.size, device=device)
    whole = torch.empty(len(share) * axis.size, device=device)
    taken = _seconds(lambda: all_gather(whole, share, group=axis.group), mesh, device)
    return _slowest(axis, mesh, "all-gather", size * (axis.size - 1) / axis.size / taken)


def _slowest(axis: Axis, mesh: Mesh, message: str, speed: float) -> Speed:
    lowest, ranks = min(gather_objects((speed, axis.ranks), mesh))
    return Speed(axis.name, message, axis.size, lowest, ranks)


def _seconds(work: Callable[[], object], mesh: Mesh, device: torch.device) -> float:
    """Median of some rounds, after one that opens the connections."""
    taken = []
    for _ in range(ROUNDS + 1):
        barrier(mesh)
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def host_pairs(hosts: Sequence[str], mesh: Mesh, device: torch.device, size: int) -> list[Pair]:
    """The speed of messages of `size` bytes between the first ranks of every two hosts.

    Each host is in one pair at a time. hosts: of every rank.
    """
    first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    names, found = list(dict.fromkeys(hosts)), []
    there, back = (torch.zeros(size // 4, device=device) for _ in range(2))
    for pairs in tournament(len(names)):
        mine = next((pair for pair in pairs if mesh.rank in (first[names[one]] for one in pair)), None)
        barrier(mesh)
        if mine is not None:
            ranks = [first[names[one]] for one in mine]
            other = ranks[1] if mesh.rank == ranks[0] else ranks[0]
            taken = statistics.median([_exchange(there, back, other, device) for _ in range(ROUNDS + 1)][1:])
            if mesh.rank == ranks[0]:
                found.append(Pair((names[mine[0]], names[mine[1]]), size / taken))
    return [pair for own in gather_objects(found, mesh) for pair in own]


def _exchange(there: torch.Tensor, back: torch.Tensor, other: int, device: torch.device) -> float:
    started = time.perf_counter()
    work = [dist.P2POp(dist.isend, there, other), dist.P2POp(dist.irecv, back, other)]
    for request in dist.batch_isend_irecv(work):
        request.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def tournament(count: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds in which each of `count` meets each other once and nobody meets two at a time (the circle method)."""
    places: list[int | None] = [*range(count), *([None] * (count % 2))]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        both = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in both if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


def slow_hosts(pairs: Sequence[Pair], share: float = 0.7) -> list[str]:
    """The hosts whose median pair is slower than `share` of the median of all."""
    if not pairs:
        return []
    usual = statistics.median(pair.bytes_per_second for pair in pairs)
    hosts = dict.fromkeys(host for pair in pairs for host in pair.hosts)
    own = {host: [pair.bytes_per_second for pair in pairs if host in pair.hosts] for host in hosts}
    return [host for host, speeds in own.items() if statistics.median(speeds) < share * usual]


def clock_offsets(mesh: Mesh, clock: Callable[[], float] = time.time) -> list[float]:
    """Seconds by which each rank's clock is ahead of rank 0's, to half the time of a message.

    Of several questions the one that was answered fastest counts (Cristian, 1989).
    """
    own = 0.0
    for rank in range(1, mesh.world_size):
        if mesh.rank == 0:
            for _ in range(PINGS):
                _ask(rank, clock)
        elif mesh.rank == rank:
            own = min(_answer(clock) for _ in range(PINGS))[1]
    return gather_objects(own, mesh)


def _ask(rank: int, clock: Callable[[], float]) -> None:
    sent, times = clock(), torch.empty(1, dtype=torch.float64)
    dist.send(torch.tensor([sent], dtype=torch.float64), rank)
    dist.recv(times, rank)
    dist.send(torch.tensor([clock()], dtype=torch.float64), rank)


def _answer(clock: Callable[[], float]) -> tuple[float, float]:
    """(seconds of the round, offset of the own clock)."""
    sent, received = (torch.empty(1, dtype=torch.float64) for _ in range(2))
    dist.recv(sent, 0)
    own = clock()
    dist.send(torch.tensor([own], dtype=torch.float64), 0)
    dist.recv(received, 0)
    start, end = sent.item(), received.item()
    return end - start, own - (start + end) / 2

"""What can be asked of a cluster only: one version everywhere, one time, links as fast as they should be."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import NamedTuple

import torch

from megaxf.doctor.check import Check, judged
from megaxf.doctor.links import Pair, Speed, axis_speeds, clock_offsets, host_pairs, slow_hosts
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh
from megaxf.plan.throughput.hardware import Hardware

SAME = ("megaxf", "torch", "deepspeed", "numpy")
SKEW_SECONDS = 1.0
"""Beyond this, the order of files' times and of log lines misleads."""
SLOW = 0.5
"""Share of the table's bandwidth below which a link is called slow: large messages reach 0.7 to 0.9 of it."""
BYTES = {"cpu": 2**24, "cuda": 2**28}


class Cluster(NamedTuple):
    """What was measured."""

    hosts: list[str]
    """Of every rank."""
    offsets: list[float]
    """Seconds that each rank's clock is ahead of rank 0's."""
    speeds: list[Speed]
    pairs: list[Pair]
    versions: list[tuple[str, ...]]
    """Of every rank: python, then SAME."""


def measure(mesh: Mesh, device: torch.device, host: str) -> Cluster:
    """Talk to every rank; collective. host: the name of this one, as the launcher knows it."""
    hosts = gather_objects(host, mesh)
    size = BYTES[device.type]
    versions = gather_objects((platform.python_version(), *map(version, SAME)), mesh)
    return Cluster(
        hosts, clock_offsets(mesh), axis_speeds(mesh, device, size), host_pairs(hosts, mesh, device, size), versions
    )


def cluster(found: Cluster, hardware: Hardware | None = None) -> Iterator[Check]:
    """The checks. hardware: what the links are compared with."""
    names = list(dict.fromkeys(found.hosts))
    yield Check(
        "ranks", f"all {len(found.hosts)} have answered, on {len(names)} {'host' if len(names) == 1 else 'hosts'}"
    )
    yield from _versions(found)
    worst = max(range(len(found.offsets)), key=lambda rank: abs(found.offsets[rank]))
    skew = abs(found.offsets[worst])
    advice = f"the clock of {found.hosts[worst]} (rank {worst}) is off: run chronyd or ntpd on every host"
    yield judged("clocks", f"within {skew:.3f} s", (skew > SKEW_SECONDS, "note", advice))
    for speed in found.speeds:
        yield _link(speed, found.hosts, hardware)
    if found.pairs:
        yield _pairs(found.pairs)


def _versions(found: Cluster) -> Iterator[Check]:
    for index, name in enumerate(("python", *SAME)):
        by_version: dict[str, list[str]] = {}
        for host, versions in zip(found.hosts, found.versions, strict=True):
            by_version.setdefault(versions[index], []).append(host)
        if len(by_version) > 1:
            parts = (f"{number} on {', '.join(dict.fromkeys(hosts))}" for number, hosts in by_version.items())
            yield Check(f"{name} everywhere", "; ".join(parts), "bad", "install one version on all hosts")


def _link(speed: Speed, hosts: Sequence[str], hardware: Hardware | None) -> Check:
    where = list(dict.fromkeys(hosts[rank] for rank in speed.slowest))
    name = f"{speed.message}, {speed.axis}"
    text = f"{speed.bytes_per_second / 1e9:,.2f} GB/s a rank among {speed.ranks}"
    expected = None
    if hardware is not None:
        expected = hardware.link_bandwidth if len(where) == 1 else hardware.network_bandwidth
    if expected is None:
        return Check(name, text)
    text += f", {expected / 1e9:,.0f} by the table"
    low = speed.bytes_per_second < SLOW * expected
    advice = f"slowest among {', '.join(where[:4])}: look at NCCL_DEBUG=INFO for the transport, and at the cables"
    return judged(name, text, (low, "note", advice))


def _pairs(pairs: Sequence[Pair]) -> Check:
    speeds = sorted(pair.bytes_per_second / 1e9 for pair in pairs)
    text = f"{speeds[0]:,.2f} to {speeds[-1]:,.2f} GB/s each way, {len(pairs)} pairs"
    slow = slow_hosts(pairs)
    advice = f"slow hosts: {', '.join(slow)}; leave them out (sbatch --exclude)"
    return judged("host to host", text, (bool(slow), "note", advice))

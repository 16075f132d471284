"""`megaxf doctor`: can this machine, this cluster run? Arguments only; the work is in megaxf.doctor."""

from __future__ import annotations

import argparse
import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaxf.doctor.check import Check
    from megaxf.doctor.cluster import Cluster

HELP = "check this machine, or under a launcher a whole cluster, before a run does"

EPILOG = """\
Looks at versions, devices, memory, limits and the speed of the disk. Started on all ranks of a run by torchrun, srun or
mpirun, it also compares the hosts with one another, measures messages along each axis of the layout and between every
two hosts, and names those that are slow. "note" is what costs speed, "bad" what ends a run; the exit code is 1 then.

examples:
  megaxf doctor --run-folder /shared/runs
  torchrun --nproc-per-node 8 -m launch.megaxf doctor --tensor-parallel-size 8 --gpu h100
  srun --ntasks-per-node 8 megaxf doctor --json > doctor.json
"""

AXES = ("tensor", "context", "pipeline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--run-folder", type=Path, default=Path("runs"), metavar="DIR", help="whose disk is timed (%(default)s)"
    )
    parser.add_argument("--gpu", metavar="NAME", help="of megaxf plan hardware: what links are compared with")
    for axis in AXES:
        parser.add_argument(f"--{axis}-parallel-size", type=int, default=1, metavar="N", help="ranks (1)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks on all ranks, prints on the first."""
    from launch.rendezvous import connect, detect, disconnect
    from megaxf.doctor.software import software
    from megaxf.plan.throughput.hardware import find

    checks = list(software())  # first: without them nothing else may work
    launch = detect()
    degrees = _degrees(arguments, launch.world_size)
    hardware = find(arguments.gpu) if arguments.gpu else None
    device = connect(launch)

    from rich.console import Console

    from megaxf.doctor.cluster import cluster, measure
    from megaxf.doctor.machine import machine
    from megaxf.doctor.page import page
    from megaxf.parallel.collectives import gather_objects
    from megaxf.parallel.mesh import build_mesh

    mesh = build_mesh(degrees)
    own = [*checks, *machine(arguments.run_folder)] if launch.local_rank == 0 else []
    together = measure(mesh, device, launch.host) if launch.world_size > 1 else None
    names = together.hosts if together else [launch.host]
    hosts = {host: found for host, found in zip(names, gather_objects(own, mesh), strict=True) if found}
    shared = list(cluster(together, hardware)) if together else []
    if launch.rank == 0:
        if arguments.json:
            print(json.dumps(_plain(hosts, shared, together), indent=1))
        else:
            page(hosts, shared, Console())
    disconnect()
    return int(any(check.verdict == "bad" for checks in [*hosts.values(), shared] for check in checks))


def _degrees(arguments: argparse.Namespace, world_size: int) -> dict[str, int]:
    """The size of each axis. Raises ConfigError where they do not cut so many processes."""
    from megaxf.config_errors import ConfigError
    from megaxf.config_layout import divisors

    degrees = {axis: getattr(arguments, f"{axis}_parallel_size") for axis in AXES}
    product = prod(degrees.values())
    problems = [f"--{axis}-parallel-size {size} should be 1 or more" for axis, size in degrees.items() if size < 1]
    if not problems and world_size % product:
        named = " x ".join(f"--{axis}-parallel-size {size}" for axis, size in degrees.items() if size > 1)
        problems.append(
            f"{named} does not divide the number of processes, {world_size}; start {product} or a multiple with "
            f"torchrun, srun or mpirun, or use degrees whose product is one of {divisors(world_size)}"
        )
    if problems:
        raise ConfigError("command line", problems)
    return degrees


def _plain(hosts: dict[str, Any], shared: list[Check], together: Cluster | None) -> dict[str, Any]:
    return {
        "hosts": {host: [check._asdict() for check in checks] for host, checks in hosts.items()},
        "cluster": [check._asdict() for check in shared],
        "measured": together._asdict() if together else None,
    }

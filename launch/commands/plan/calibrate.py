"""`megaxf plan calibrate`: measure this machine. Arguments only; the work is in megaxf.train.calibrate."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "measure this machine, or this cluster under torchrun, for megaxf plan throughput --profile"

EPILOG = """\
Measures matrix products, attention, memory, messages between ranks, and a training step of a small model; a minute on a
GPU, and on a machine that does nothing else. Under torchrun, mpirun or srun all ranks measure at once, as in a run.

examples:
  megaxf plan calibrate -o profile.json
  torchrun --nproc-per-node 8 -m launch.megaxf plan calibrate -o profile.json
  megaxf plan throughput run.yaml --profile profile.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="JSON", help="where the profile goes")
    parser.add_argument(
        "--precision", choices=("bf16", "fp32"), default="bf16", help="of the run (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measures on all ranks, writes and prints on the first."""
    from dataclasses import asdict

    from launch.rendezvous import connect, detect, disconnect
    from megaxf.plan.output import as_json, check_file

    launch = detect()
    if launch.rank == 0:
        check_file(arguments.output)
    device = connect(launch)

    from megaxf.parallel.mesh import build_mesh
    from megaxf.plan.throughput.hardware import write_profile
    from megaxf.plan.throughput.page import measured
    from megaxf.train.calibrate import calibrate

    machine = calibrate(build_mesh(), device, arguments.precision, launch.local_world_size)
    if launch.rank == 0:
        write_profile(arguments.output, machine)
        print(as_json(asdict(machine)) if arguments.json else measured(machine))
    disconnect()
    return 0

"""What a batch system starts once a node: meets the other nodes, then runs torchrun for the ranks of this one.

    srun --ntasks-per-node=1 python launch/node.py --ranks 8 run.yaml section.key=value

Beside torchrun by hand: no address and port have to be given, missing nodes are named, SIGTERM and SIGUSR1 reach the
ranks, which get all the time they need to save, and the exit code is that of the ranks: 75 asks to be started again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # Python puts this folder first on the path, where launch/megaxf.py would hide the package megaxf.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from launch.launchers import HERE, Launch, fault
from launch.meeting import free_port, meet
from launch.megaxf import USER_FAULT, fail
from launch.rendezvous import connect_seconds, detect
from launch.signals import STOPPED, HandOn
from megaxf.config_errors import ConfigError

PRETRAIN = Path(__file__).resolve().with_name("pretrain.py")
QUIET = (USER_FAULT, STOPPED)
"""Exit codes about which the ranks have said all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Start the ranks of this node and wait for them; gives their exit code."""
    parser = argparse.ArgumentParser(prog="node.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=1, help="ranks of this node: its GPUs (default 1)")
    arguments, rest = parser.parse_known_args(argv)
    try:
        with HandOn() as signals:
            options = torchrun_options(detect(), arguments.ranks)
            signals.begin()
            return run_ranks(options, rest)
    except ConfigError as error:
        return fail(str(error))


def torchrun_options(node: Launch, ranks: int) -> list[str]:
    """How torchrun finds the other nodes; collective over the nodes. `node` is the place of this one among them."""
    if node.local_world_size != 1:
        raise fault(f"{node.launcher} started {node.local_world_size} tasks on {node.host}; start one a node")
    address, port = node.address or HERE, str(free_port())
    if node.world_size > 1:
        port = meet(node, port, connect_seconds())
    return [
        f"--nnodes={node.world_size}",
        f"--node-rank={node.rank}",
        f"--nproc-per-node={ranks}",
        f"--master-addr={address}",
        f"--master-port={port}",
        "--signals-to-handle=SIGHUP,SIGQUIT",  # The others are ours: torchrun would give the ranks 30 seconds to save.
    ]


def run_ranks(options: Sequence[str], arguments: Sequence[str]) -> int:
    """Run launch/pretrain.py with these arguments under torchrun; its exit code, or 128 + the signal that ended it."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun([*options, str(PRETRAIN), *arguments])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        code = int(first.exitcode)
        if code not in QUIET:
            print(error, file=sys.stderr)
        return code if code >= 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main())

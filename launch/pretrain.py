"""What torchrun, srun and mpirun start: one rank of a pretraining run.

    torchrun --nproc-per-node 2 launch/pretrain.py run.yaml section.key=value
    srun python launch/pretrain.py run.yaml
    mpirun -n 2 python launch/pretrain.py run.yaml

The arguments are those of `megaxf pretrain`. Faults are the same on every rank: rank 0 tells, all leave with code 2.
The others leave later, since a launcher ends all ranks at the first that fails, and rank 0 has to come to speak.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    # Python puts this folder first on the path, where launch/megaxf.py would hide the package megaxf.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

    # A batch system may send them before the trainer listens, or once more when it has ended: they wait.
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGUSR1})

from launch.megaxf import USER_FAULT, fail, run_verb
from launch.output import outlive_readers
from launch.rendezvous import detect
from megaxf.config_errors import ConfigError

PATIENCE_SECONDS = 15
"""For how long ranks may differ in reaching the same fault: imports from a busy disk."""


def main(argv: Sequence[str] | None = None, verb: str = "pretrain") -> int:
    """Run a verb as one rank; returns the exit code."""
    try:
        rank = detect().rank
    except ConfigError as error:
        return fail(str(error))
    code = run_verb(verb, sys.argv[1:] if argv is None else argv, quiet=rank != 0)
    if code == USER_FAULT and rank != 0:
        signal.sigtimedwait({signal.SIGTERM}, PATIENCE_SECONDS)  # A launcher sends it when rank 0 has left.
    return code


if __name__ == "__main__":
    outlive_readers()
    sys.exit(main())

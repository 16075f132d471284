"""What torchrun, srun and mpirun start: one rank of those that hold a model together and generate with it.

    torchrun --nproc-per-node 2 launch/generate.py my-model --prompt 'Once upon'

The arguments are those of `megaxf generate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # As launch/pretrain.py does.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from launch.pretrain import main

if __name__ == "__main__":
    sys.exit(main(verb="generate"))

"""launch/pretrain.py, but that after the first checkpoint a thread that saves stands still, at a place that
MEGAXF_HELD_AT names, and says so by a file."""

import os
import runpy
import sys
import threading
from pathlib import Path

from launch.rendezvous import detect
from megaxf.checkpoint import files
from megaxf.checkpoint.tensors import BoxWriter
from megaxf.train import export
from tests.end_to_end.chaos import PRETRAIN

PLACES = {
    "tensors": (BoxWriter, "put"),
    "export": (export, "write_share"),
    "rename": (files, "rename"),  # of the whole checkpoint, which has its manifest
}


def main() -> None:
    """Plant it, and train."""
    run_folder, rank = Path(sys.argv[1]).with_suffix(""), detect().rank
    owner, name = PLACES[os.environ["MEGAXF_HELD_AT"]]
    plain = getattr(owner, name)

    def held(*args, **options):
        if any((run_folder / "checkpoints").glob("step-*")):
            (run_folder / f"held-{rank}").touch()
            threading.Event().wait()
        return plain(*args, **options)

    setattr(owner, name, held)
    runpy.run_path(PRETRAIN, run_name="__main__")


if __name__ == "__main__":
    main()

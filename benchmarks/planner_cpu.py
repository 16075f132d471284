"""Does the planner, calibrated on this machine, predict steps that it was not calibrated on? On CPUs.

    python benchmarks/planner_cpu.py [--precision fp32] [--rounds 5]

Two layouts: one process of two threads, and two data-parallel ones of one thread. In each the machine is calibrated
with all its processes, then four other shapes are trained and compared, in turn for some rounds: medians of the rounds,
since a machine's speed drifts between one and the next. Needs a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.groups import Group

LAYOUTS = {"one process, 2 threads": (1, 2), "DP 2": (2, 1)}
"""Name -> ranks, threads of each."""
SHAPES = {
    "narrow and deep": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 3},
    "wide": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8},
    "large vocabulary": {"vocab_size": 16384},
    "wider and deeper": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
    },
}
"""Changes of the model that the machine is calibrated on (megaxf.train.calibrate.MODEL)."""


STEPS = 3
"""Of each shape in a round."""


def make(precision: str) -> Callable[[], dict[str, tuple[float, float]]]:
    """On each rank: calibrates when called, then gives (predicted, measured) seconds of a step for each shape."""
    import torch

    from megaxf.parallel.mesh import build_mesh
    from megaxf.plan.throughput.layout import layout
    from megaxf.plan.throughput.step import predict
    from megaxf.train.calibrate import calibrate, reference_run, step_seconds

    def compare() -> dict[str, tuple[float, float]]:
        mesh, device = build_mesh(), torch.device("cpu")
        machine = calibrate(mesh, device, precision, mesh.world_size)
        found = {}
        for name, change in SHAPES.items():
            run = reference_run("cpu", precision, mesh.world_size, **change)
            predicted = float(predict(layout(run, mesh.world_size), machine).seconds)
            found[name] = predicted, step_seconds(run, mesh, device, STEPS)
        return found

    return compare


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, (ranks, threads) in LAYOUTS.items():
        with Group(ranks, threads, make, arguments.precision) as group:
            rounds = [group.step() for _ in range(arguments.rounds)]
        print(name)
        for shape in SHAPES:
            predicted, measured = (statistics.median(found[shape][part] for found in rounds) for part in (0, 1))
            errors = [found[shape][0] / found[shape][1] - 1 for found in rounds]
            print(
                f"  {shape:<20} predicted {predicted:7.3f} s   measured {measured:7.3f} s   "
                f"error {statistics.median(errors):+6.1%}   ({min(errors):+.1%} to {max(errors):+.1%})"
            )


if __name__ == "__main__":
    main()

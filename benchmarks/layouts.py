"""What cutting a model over two processes costs: two ranks of one thread each against one process of two threads.

    python benchmarks/layouts.py --rounds 9

All train the same model on the same global batch, in turn. Prints tokens per second and the ratio of the medians to the
one process; the part that is missing to 1.00 is communication, and work that every rank repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.groups import Group, Step
from benchmarks.timing import alternate, median_ratio

LAYOUTS: dict[str, tuple[int, int, dict[str, Any], int]] = {
    "one process, 2 threads": (1, 2, {}, 0),
    "TP 2": (2, 1, {"tensor_parallel_size": 2}, 0),
    "TP 2, sequence parallel": (2, 1, {"tensor_parallel_size": 2, "sequence_parallel": True}, 0),
    "CP 2": (2, 1, {"context_parallel_size": 2}, 0),
    "DP 2": (2, 1, {}, 0),
    "DP 2, ZeRO 1": (2, 1, {}, 1),
}
"""Name -> ranks, threads of each, section `parallel`, ZeRO stage."""

BATCH = 4


def make_step(parallel: dict[str, Any], zero_stage: int, precision: str, sequence: int) -> Step:
    """A training step of a model of 34M parameters at a layout, on the rank that this process is."""
    import torch

    from benchmarks.random_run import random_run
    from megaxf.engine import TorchBatch, create, micro_batches
    from megaxf.parallel.mesh import build_mesh

    model = {
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
        "num_attention_heads": 8,
    }  # fmt: skip
    train = {"global_batch_size": BATCH, "micro_batch_size": 2, "precision": precision}
    run = random_run(model, sequence, train, parallel=parallel, engine={"zero_stage": zero_stage})
    mesh = build_mesh(run.parallel.degrees(), run.parallel.order)
    engine = create(run, mesh, "cpu")
    ids = torch.randint(8192, (BATCH, sequence + 1), generator=torch.Generator().manual_seed(0))
    own = ids.chunk(mesh.data_size)[mesh.data_rank]
    batch = micro_batches(TorchBatch(own[:, :-1].contiguous(), own[:, 1:].contiguous()), 2)
    return lambda: engine.train_step(batch, 1e-4).loss


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--only", nargs="*", default=list(LAYOUTS), help="layouts by name")
    arguments = parser.parse_args()
    names = list(dict.fromkeys([*list(LAYOUTS)[:1], *arguments.only]))
    with ExitStack() as stack:
        steps = {}
        for name in names:
            ranks, threads, parallel, stage = LAYOUTS[name]
            make = (make_step, parallel, stage, arguments.precision, arguments.sequence)
            steps[name] = stack.enter_context(Group(ranks, threads, *make)).step
        losses = {name: step() for name, step in steps.items()}
        seconds = alternate(steps, arguments.rounds)
    tokens = BATCH * arguments.sequence
    print(
        f"34M parameters, {arguments.precision}, {BATCH} sequences of {arguments.sequence}, {arguments.rounds} rounds"
    )
    for name, own in seconds.items():
        ratio = median_ratio(own, seconds[names[0]])
        speed = tokens / statistics.median(own)
        print(f"{name:26} {speed:8,.0f} tokens/s   {ratio:5.2f} x one process   first loss {losses[name]:.6f}")


if __name__ == "__main__":
    main()

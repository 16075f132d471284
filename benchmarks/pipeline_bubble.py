"""How long the stages of a pipeline really wait: two ranks of one thread each, against the formula and the clock.

    python benchmarks/pipeline_bubble.py --rounds 5

For each schedule and number of micro-batches, all in turn: the share of the two ranks' time, from the first pass of a
step to the end of the last, in which they are in no forward or backward pass. Beside it (p - 1)/(m + p - 1), and what
the schedule's own instructions give on a clock (`megaxf plan schedule`); the ratio is measured to clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.groups import Group, Step

STAGES = 2
CELLS = [
    ("1f1b", 2),
    ("1f1b", 4),
    ("1f1b", 8),
    ("interleaved", 4),
    ("interleaved", 8),
    ("dualpipev", 4),
    ("dualpipev", 8),
]
"""(schedule, micro-batches in a step); each is a pair of processes, which keep still while they do not measure."""


def make_step(schedule: str, count: int, hidden: int, sequence: int) -> Step:
    """A training step of a model whose head costs little, so that the stages are equal; gives the share waited."""
    import torch

    from benchmarks.random_run import random_run
    from megaxf.engine import TorchBatch, create
    from megaxf.parallel.collectives import barrier, gather_objects
    from megaxf.parallel.mesh import build_mesh

    model = {
        "vocab_size": 256, "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": 8,
        "num_attention_heads": 8,
    }  # fmt: skip
    train = {"global_batch_size": count, "micro_batch_size": 1, "precision": "fp32"}
    parallel = {"pipeline_parallel_size": STAGES, "pipeline_schedule": schedule}
    run = random_run(model, sequence, train, parallel=parallel, engine={"zero_stage": 1})
    mesh = build_mesh(run.parallel.degrees(), run.parallel.order)
    engine: Any = create(run, mesh, "cpu")
    passes = record_passes(engine._zero)
    ids = torch.randint(256, (1, sequence + 1), generator=torch.Generator().manual_seed(0))
    batches = [TorchBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())] * count

    def step() -> float:
        passes.clear()
        barrier(mesh)
        engine.train_step(batches, 1e-4)
        times = [done for own in gather_objects(passes, mesh) for done in own]
        span = max(end for _, end in times) - min(start for start, _ in times)
        return 1 - sum(end - start for start, end in times) / (STAGES * span)

    for _ in range(2):
        step()
    return step


def record_passes(pipeline: Any) -> list[tuple[float, float]]:
    """A list that gets the times at which each pass of a DeepSpeed engine starts and ends, on the machine's clock."""
    passes: list[tuple[float, float]] = []

    def timed(execute: Callable[..., None]) -> Callable[..., None]:
        def wrapper(engine: Any, **place: int) -> None:
            start = time.monotonic()
            execute(engine, **place)
            passes.append((start, time.monotonic()))

        return wrapper

    names = ("ForwardPass", "BackwardPass")
    table = pipeline._INSTRUCTION_MAP
    pipeline._INSTRUCTION_MAP = {
        kind: timed(execute) if kind.__name__ in names else execute for kind, execute in table.items()
    }
    return passes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each; their median counts (%(default)s)")
    parser.add_argument("--hidden-size", type=int, default=512, help="width of the model (%(default)s)")
    parser.add_argument("--sequence-length", type=int, default=256, help="tokens of a micro-batch (%(default)s)")
    arguments = parser.parse_args()

    from megaxf.engine.timeline import simulate

    shares: dict[tuple[str, int], list[float]] = {cell: [] for cell in CELLS}
    with ExitStack() as stack:
        sizes = arguments.hidden_size, arguments.sequence_length
        groups = {cell: stack.enter_context(Group(STAGES, 1, make_step, *cell, *sizes)) for cell in CELLS}
        for _ in range(arguments.rounds):
            for cell, group in groups.items():
                shares[cell].append(group.step())
    print(f"{'schedule':<12} {'micro-batches':>13} {'measured':>9} {'formula':>8} {'clock':>7} {'ratio':>6}")
    for (schedule, count), found in shares.items():
        timeline = simulate(schedule, STAGES, count)
        measured = statistics.median(found)
        print(
            f"{schedule:<12} {count:>13} {measured:>9.1%} {timeline.one_part_bubble:>8.1%} {timeline.bubble:>7.1%} "
            f"{measured / timeline.bubble:>6.2f}"
        )


if __name__ == "__main__":
    main()

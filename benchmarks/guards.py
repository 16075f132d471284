"""What guards, heartbeat, metrics and statistics cost at their defaults, beside the step; seconds of the CPU.

    python -m benchmarks.guards [--steps 3]

Each part is timed by itself, many times over: as a difference of whole runs a hundredth would drown in noise. The step
is a small one, of the model that calibration uses, so that the shares are larger than those of a run. One process: the
tiny messages by which ranks agree are part of benchmarks on a cluster, and of `megaxf doctor` there.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import alternate
from megaxf.engine import TorchBatch, create, micro_batches
from megaxf.engine.statistics import Statistics, square_sum
from megaxf.parallel.clock import Clock
from megaxf.parallel.mesh import build_mesh
from megaxf.train.breakdown import breakdown
from megaxf.train.calibrate import reference_run
from megaxf.train.guards import Requests
from megaxf.train.guards.heartbeat import INTERVAL, Heartbeat
from megaxf.train.guards.numbers import NumberGuard
from megaxf.train.metrics import Recorder, TrainRecord
from megaxf.train.writers import TensorBoard

CPU = torch.device("cpu")


def per_call(work: Callable[[], object], calls: int = 200) -> float:
    """CPU seconds of one call."""
    work()
    started = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - started) / calls


def a_part(clock: Clock) -> None:
    """Go through an empty part of a step."""
    with clock.part("forward"):
        pass


def main() -> None:
    """Time, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run, mesh = reference_run("cpu", "fp32", 1), build_mesh()
    engine, length = create(run, mesh, CPU), run.data.sequence_length
    ids = torch.randint(run.model.vocab_size, (run.train.global_batch_size, length + 1))
    batch = micro_batches(TorchBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), run.train.micro_batch_size)
    result = engine.train_step(batch, 1e-4)
    steps = alternate({"step": lambda: engine.train_step(batch, 1e-4)}, arguments.steps, 1, time.process_time)["step"]
    step = sorted(steps)[len(steps) // 2]
    numbers = NumberGuard(run)
    for _ in range(run.guards.spike_window):
        numbers.judge(9, result, lambda: 0, mesh, CPU)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorder = Recorder(folder / "metrics.jsonl", 0, [TensorBoard(folder / "tensorboard", 0, 0)])
        times = breakdown(mesh.clock.read(), 1.0, 0.0)
        record = TrainRecord(1, 1, 1.0, 0.0, 1e-4, 1.0, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1, times=times)
        requests = Requests(lambda: False, folder, 240.0)
        heartbeat = Heartbeat(mesh, folder / "stacks", run.guards.timeout_seconds)
        weights = engine.replicated()
        statistics, looks = Statistics(engine, run, CPU), run.metrics.statistics_every
        outputs = run.model.num_hidden_layers * len(batch)
        hidden = torch.ones(*batch[0].tokens.shape, run.model.hidden_size)
        costs = {
            "spikes and numbers that are not finite": per_call(lambda: numbers.judge(9, result, lambda: 0, mesh, CPU)),
            "requests to stop": per_call(lambda: requests.stop(1.0, 1.0)),
            "place of the heartbeat": per_call(lambda: heartbeat.beat(1, "train")),
            f"heartbeat, every {INTERVAL:.0f} s of which a step has its share": per_call(heartbeat._look)
            * step
            / INTERVAL,
            f"hash of weights and optimizer state, every {run.guards.replica_check_every} steps": per_call(
                lambda: [torch.hash_tensor(tensor.detach()) for tensor in weights.values()], 5
            )
            / run.guards.replica_check_every,
            f"numbers of groups of layers, every {looks} steps": (
                per_call(lambda: statistics._see_update(1e-4), 5)
                + per_call(lambda: statistics._see_gradient(engine._gradient_pieces()), 5)
                + per_call(lambda: square_sum(hidden), 20) * outputs
            )
            / looks,
            "where the time goes": per_call(lambda: a_part(mesh.clock)) * (2 * len(batch) + 3),
            "metrics.jsonl and TensorBoard": per_call(lambda: recorder.train(record)),
        }
        recorder.close()
    print(
        f"a step: {step:.3f} s of the CPU ({sum(w.numel() for w in engine.replicated().values()):,} numbers of state)"
    )
    for what, seconds in costs.items():
        print(f"{seconds / step:9.5%}  {seconds * 1e6:8.1f} us  {what}")
    print(f"{sum(costs.values()) / step:9.5%}  in all")


if __name__ == "__main__":
    main()

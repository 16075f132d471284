"""What does a checkpoint cost: bytes a second against torch.save and plain DCP, and the step beside a save?

    python benchmarks/checkpoint.py                          # on the disk of the system's temporary folder
    python benchmarks/checkpoint.py --folder /mnt/disk --layers 8 --rounds 9

One process trains a Llama of hidden size 1024 in fp32 on the plain-torch engine. All save the same state, weights and
moments, and wait for the disk (fsync), and load it into the memory where it belongs. megaxf's files are checksummed
while written and compared with their checksums before anything is loaded; with `keep_last`, as in a run, they are read
back, too. torch.save by itself waits for no disk: both stand there without fsync as well. Contenders run in turn; the
clock of the CPU stands beside the other, which other work lengthens.
Then training steps: alone, while a checkpoint is in flight, and what a step waits for the copy and for a whole save.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.random_run import random_run
from benchmarks.timing import alternate, median_ratio
from megaxf.checkpoint import Background, HostBuffers, load, save, saving
from megaxf.engine import Engine, TorchBatch, create
from megaxf.parallel.mesh import build_mesh

MODEL = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8}
SEQUENCE, RATE = 128, 1e-4
MESH = build_mesh()


def build(layers: int) -> Callable[[], Engine]:
    """A step of a trained engine, which gives the engine."""
    train = {"micro_batch_size": 2, "global_batch_size": 2, "precision": "fp32"}
    model = {**MODEL, "num_hidden_layers": layers}
    engine = create(random_run(model, SEQUENCE, train, engine={"zero_stage": 0}), MESH, "cpu")
    tokens = torch.randint(MODEL["vocab_size"], (2, SEQUENCE + 1))
    batch = TorchBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def step() -> Engine:
        engine.train_step([batch], RATE)
        return engine

    step()
    return step


def torch_save(state: dict[str, torch.Tensor], folder: Path) -> None:
    """One file, on the disk."""
    with (folder / "state.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def unsynced(work: Callable[[], Any]) -> None:
    """The same, without a wait for the disk: what a machine that fails would lose."""
    with patch("os.fsync", lambda descriptor: None):
        work()


def torch_load(state: dict[str, torch.Tensor], folder: Path) -> None:
    """The file into the tensors of the state."""
    found = torch.load(folder / "state.pt", weights_only=True)
    for key, tensor in state.items():
        tensor.copy_(found[key])


def contenders(engine: Engine, folder: Path) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """Name -> work of a round, for saving and for loading what was saved."""
    state = {piece.key: piece.values for piece in engine.pieces()}
    dcp = torch.distributed.checkpoint
    for name in ("torch", "dcp"):
        (folder / name).mkdir()
    saves = {
        "megaxf": partial(save, folder / "megaxf", 1, engine, {}, MESH, config="{}"),
        "megaxf, read back": partial(save, folder / "kept", 1, engine, {}, MESH, config="{}", keep_last=1),
        "torch.save": partial(torch_save, state, folder / "torch"),
        "plain DCP": partial(dcp.save, state, checkpoint_id=folder / "dcp", no_dist=True),
    }
    saves |= {f"{name}, no fsync": partial(unsynced, saves[name]) for name in ("megaxf", "torch.save")}
    loads = {
        "megaxf": partial(load, folder / "megaxf/step-00000001", engine, MESH),
        "torch.load": partial(torch_load, state, folder / "torch"),
        "plain DCP": partial(dcp.load, state, checkpoint_id=folder / "dcp", no_dist=True),
    }
    return saves, loads


def report(title: str, works: dict[str, Callable[[], Any]], size: int, rounds: int) -> None:
    """Bytes a second of each contender by both clocks, and what of them megaxf has more."""
    # What one leaves in memory for the disk to do must not be counted as another's.
    wall = alternate(works, rounds, warmup=1, before=os.sync)
    cpu = alternate(works, rounds, warmup=0, before=os.sync, clock=time.process_time)
    for name in works:
        speeds = (size / statistics.median(seconds[name]) / 1e9 for seconds in (wall, cpu))
        ratios = (median_ratio(seconds["megaxf"], seconds[name]) for seconds in (wall, cpu))
        print("{}  {:20} {:6.2f} GB/s, {:6.2f} of CPU time".format(title, name, *speeds), end="")
        print("   megaxf / it: {:.2f}, {:.2f}".format(*ratios))


def stalls(step: Callable[[], Engine], folder: Path, rounds: int) -> None:
    """Seconds of steps alone and beside a save that is always in flight, and of what a step waits for."""
    alone, beside, copies, whole = [], [], [], []
    buffers, engine = HostBuffers(), step()

    def timed(work: Callable[[], Any], into: list[float]) -> Any:
        start = time.perf_counter()
        found = work()
        into.append(time.perf_counter() - start)
        return found

    for number in range(rounds + 1):
        for _ in range(4):
            timed(step, alone)
        flow = saving(folder / "beside", number, engine, {}, MESH, buffers, config="{}", keep_last=1)
        flight = timed(partial(Background, MESH, flow), copies)
        while not flight.done:
            timed(step, beside)
            if not flight.busy():
                flight.advance()
        timed(partial(save, folder / "between", number, engine, {}, MESH, config="{}", keep_last=1), whole)
    first = copies.pop(0)  # In the first, memory is allocated.
    print(f"step alone {statistics.median(alone):.3f} s, beside a save {statistics.median(beside):.3f} s: ", end="")
    print(f"{statistics.median(beside) / statistics.median(alone):.2f} times, {len(beside)} steps, {rounds + 1} saves")
    print(f"a save lets training wait for {statistics.median(copies):.3f} s (the first {first:.3f} s), ", end="")
    print(f"and for {statistics.median(whole):.3f} s with checkpoint.asynchronous = false")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled|Detected an existing checkpoint")
    step = build(arguments.layers)
    with TemporaryDirectory(prefix="megaxf-benchmark-", dir=arguments.folder) as name:
        folder = Path(name)
        engine = step()
        size = sum(piece.values.nbytes for piece in engine.pieces())
        print(f"{size / 1e9:.2f} GB of state, {shutil.disk_usage(folder).free / 1e9:.0f} GB free in {folder.parent}")
        saves, loads = contenders(engine, folder)
        report("save", saves, size, arguments.rounds)
        report("load", loads, size, arguments.rounds)
        stalls(step, folder, arguments.rounds)


if __name__ == "__main__":
    main()

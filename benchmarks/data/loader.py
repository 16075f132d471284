"""What a rank of training is given: batches of the ring per CPU-second, its thread included, and what a resume takes.

    python benchmarks/data/loader.py --tokens 1000000000 --shards 10
    PYTHONPATH=peers/lib/python3.11/site-packages python benchmarks/data/loader.py

Data, contenders and clock as in benchmarks/data/rows.py, with batches of int64 [8, 2049] (tokens and labels share their
memory). A resume opens the data set, makes the order and the ring and waits for the first batch, in a process that has
imported everything; where other work shares the cores, its CPU time and the best wall time are those to trust.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.rows import LENGTH, ROWS, memmap, options, order, write
from benchmarks.data.rows_peers import PEERS
from benchmarks.timing import alternate, median_ratio
from data_pipeline.format.dataset import open_dataset
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.ring import Request, Ring
from data_pipeline.loader.torch import TokenIterableDataset

Step = Callable[[], object]
POSITIONS = (0, 10**9, 10**15)
CONSOLE = Console()


def opened(folder: Path, bounds: bool = False) -> Batches:
    """The run of one source."""
    return Batches({"a": (folder, 1.0)}, "train", LENGTH, seed=1, isolate_documents=bounds)


def ring(folder: Path, sample: int = 0, bounds: bool = False) -> Ring:
    """The batches of a run of one rank from a position on."""
    return Ring(opened(folder, bounds), (Request(first, ROWS, LENGTH) for first in count(sample, ROWS)))


def taking(ring: Ring, batches: int) -> Step:
    """A round of a consumer that does nothing."""

    def step() -> None:
        for _ in range(batches):
            next(ring)
            ring.release()

    return step


def iterating(loader: Iterator[Any], batches: int) -> Step:
    """A round of torch's face."""
    return lambda: sum(1 for _ in islice(loader, batches))


def contenders(folder: Path, batches: int, peers: list[str]) -> dict[str, Step]:
    """Name -> a round."""
    dataset = open_dataset(folder, "train")
    torch_face = TokenIterableDataset(opened(folder), global_batch_size=ROWS)
    found = {
        "np.memmap": memmap(dataset, batches),
        "ours, without a thread": order(folder, batches),
        "ours, ring": taking(ring(folder), batches),
        "ours, ring, with positions, ids, cu_seqlens": taking(ring(folder, bounds=True), batches),
        "ours, IterableDataset (copies, with a thread)": iterating(iter(torch_face), batches),
    }
    for name in peers:
        try:
            found.update(PEERS[name](dataset, folder.with_name(f"{folder.name}-{name}"), batches, ROWS, LENGTH))
        except ImportError as error:
            print(f"{name} takes no part: {error}")
    return found


def throughput(folder: Path, arguments: argparse.Namespace) -> None:
    """Prints the table of contenders."""
    steps = contenders(folder, arguments.batches, arguments.peers)
    seconds = alternate(steps, arguments.rounds, clock=time.process_time)
    table = Table("loader", "M tokens per CPU-s", "batches per CPU-s", "x np.memmap")
    for name, taken in seconds.items():
        rate = arguments.batches / statistics.median(taken)
        ratio = median_ratio(taken, seconds["np.memmap"])
        table.add_row(name, f"{rate * ROWS * (LENGTH + 1) / 1e6:.1f}", f"{rate:,.0f}", f"{ratio:.3f}")
    CONSOLE.print(table)


def resumes(folder: Path, rounds: int = 21) -> None:
    """Prints how long the first batch takes at several positions."""
    table = Table("sample", "CPU-ms to the first batch, median", "ms, best", "ms, median")
    for position in POSITIONS:
        wall, cpu = [], []
        for number in range(rounds):
            start = time.perf_counter(), time.process_time()
            reading = ring(folder, position + number)
            next(reading)
            wall.append((time.perf_counter() - start[0]) * 1000)
            cpu.append((time.process_time() - start[1]) * 1000)
            reading.close()
        times = statistics.median(cpu), min(wall), statistics.median(wall)
        table.add_row(f"{position:,}", *(f"{taken:.1f}" for taken in times))
    CONSOLE.print(table)


def main() -> None:
    """Makes the data, measures, prints."""
    arguments = options(__doc__, shards=1000)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tokens"
        write(folder, arguments.tokens, arguments.shards)
        throughput(folder, arguments)
        resumes(folder)


if __name__ == "__main__":
    main()

"""What the order of samples costs: positions per CPU-second, a cold start anywhere, and shards that a node touches.

    python benchmarks/data/order.py

Resuming is measured in this process after a first use, each time with everything but the imports made anew. Sizes as
in training: batches of 512, planned 32 at a time. 100 million rows of one source, 4, 50 and 1000 sources.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_pipeline.loader.order import SampleOrder
from data_pipeline.loader.plan import Planner
from data_pipeline.order.cuts import EpochOrder, WholeOrder
from data_pipeline.order.lanes import LaneOrder, Lanes
from data_pipeline.order.phases import Phase, Phases
from data_pipeline.order.skips import Skips

BATCH = 512
SHARDS = 1000
ROWS = 100_000_000
CONSOLE = Console()


def sample_order(sources: int, lanes: Lanes | None) -> SampleOrder:
    """A run over equal sources of ROWS rows in all, with weights that are anything but equal."""
    weights = tuple(np.random.default_rng(sources).lognormal(size=sources).tolist())
    sizes = np.full(SHARDS, ROWS // sources // SHARDS)
    names = [f"source-{number}" for number in range(sources)]
    orders: list[EpochOrder] = [
        LaneOrder(sizes, 1, name, lanes, weight / sum(weights)) if lanes else WholeOrder(int(sizes.sum()), 1, name)
        for name, weight in zip(names, weights, strict=True)
    ]
    phases = Phases([Phase(0, BATCH, 2048, weights)], 2048, [order.rows for order in orders], Skips([]))
    return SampleOrder(phases, orders, names, 1)


def cpu_seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """The median of a few rounds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def throughput() -> None:
    """Batch by batch through the planner, as training asks for them."""
    table = Table("order", "sources", "M positions per CPU-s", "us a batch of 512", title="Planned 16,384 at a time")
    for name, lanes in (("whole", None), ("lanes 8 x 16", Lanes(8, 16, BATCH))):
        for sources in (1, 4, 50, 1000):
            order, batches = sample_order(sources, lanes), 256 if sources < 1000 else 64

            def read(order: SampleOrder = order, batches: int = batches) -> None:
                planner = Planner(order)
                for step in range(batches):
                    planner.block(10**6 + step * BATCH, BATCH)

            read()
            seconds = cpu_seconds(read) / batches
            table.add_row(name, str(sources), f"{BATCH / seconds / 1e6:.2f}", f"{seconds * 1e6:.0f}")
    CONSOLE.print(table)


def cold_starts() -> None:
    """A new order and its first batch, at positions however far; memory is what stays afterwards."""
    table = Table("order", "position", "ms", "kept, kB", title="First batch of 512 of a new order, 4 sources")
    for name, lanes in (("whole", None), ("lanes 8 x 16", Lanes(8, 16, BATCH))):
        for position in (0, 10**9, 10**15):

            def start(lanes: Lanes | None = lanes, position: int = position) -> Planner:
                planner = Planner(sample_order(4, lanes))
                planner.block(position, BATCH)
                return planner

            seconds = cpu_seconds(start, 9)
            tracemalloc.start()
            kept = start()
            size = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            del kept
            table.add_row(name, f"{position:.0e}", f"{seconds * 1e3:.2f}", f"{size / 1e3:.0f}")
    CONSOLE.print(table)


def locality() -> None:
    """1000 shards of 488 rows: shards in a batch of 512, and shards that each of 8 nodes needs for 51,200 samples."""
    table = Table("order", "shards in a batch", "shards of a node", title="51,200 samples are 105 shards' worth")
    sizes = np.full(SHARDS, 488)
    rows = int(sizes.sum())
    orders: dict[str, EpochOrder] = {"whole": WholeOrder(rows, 1, "web")}
    for lanes, window in ((1, 32), (8, 16), (64, 4)):
        orders[f"{lanes} x {window}"] = LaneOrder(sizes, 1, "web", Lanes(lanes, window, BATCH), 1.0)
    for name, order in orders.items():
        shards = order.locate(0, np.arange(100 * BATCH)).reshape(100, 8, BATCH // 8) // 488
        batch = np.mean([len(np.unique(one)) for one in shards])
        node = np.mean([len(np.unique(shards[:, number])) for number in range(8)])
        table.add_row(name, f"{batch:.0f}", f"{node:.0f}")
    CONSOLE.print(table)


if __name__ == "__main__":
    throughput()
    cold_starts()
    locality()

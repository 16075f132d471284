"""Tokens that a CPU-second delivers as int64 [8, 2049], in random order: ours, np.memmap alone, and other loaders.

    python benchmarks/data/rows.py --tokens 1000000000 --shards 10
    PYTHONPATH=peers/lib/python3.11/site-packages python benchmarks/data/rows.py --shards 1000

Documents of log-normal lengths (mean 885) and random ids, page cache warm. All contenders run in turn, other rows
in each round; the clock is that of the process with all its threads. A ratio is one of medians. Of datatrove, litdata
and mosaicml-streaming those take part that can be imported; their data are made from the same tokens.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.rows_peers import PEERS
from benchmarks.timing import alternate, median_ratio
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.writer import DatasetWriter
from data_pipeline.loader.batches import Batches
from data_pipeline.rows.batch import Buffer
from data_pipeline.rows.boundaries import cu_seqlens
from data_pipeline.rows.reader import RowOptions, RowReader

ROWS, LENGTH = 8, 2048
EOD, VOCABULARY = 50_000, 50_001
MEAN = 885

Step = Callable[[], object]


def document_lengths(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Log-normal, with EOD."""
    return np.maximum(2, rng.lognormal(np.log(MEAN) - 0.6, 1.1, count)).astype(np.int64)


def write(folder: Path, tokens: int, shards: int) -> None:
    """Documents of random ids, so many tokens in about so many shards."""
    rng = np.random.default_rng(0)
    with DatasetWriter(folder, vocab_size=VOCABULARY, eod_id=EOD, shard_tokens=tokens // shards) as writer:
        for _ in range(-(-tokens // 10_000_000)):
            lengths = document_lengths(rng, 10_000_000 // MEAN)
            ids = rng.integers(0, EOD, int(lengths.sum()), dtype=np.uint16)
            ids[np.cumsum(lengths) - 1] = EOD
            writer.add("train", ids, lengths)
        writer.finish()


def memmap(dataset: TokenDataset, batches: int) -> Step:
    """The naive limit: rows copied from np.memmap, the file and the offset of each given."""
    rng = np.random.default_rng(1)
    maps = [np.memmap(dataset.files.path(shard, "bin"), np.uint16, "r") for shard in range(len(dataset.shards))]
    last = np.asarray([len(tokens) - LENGTH for tokens in maps])

    def step() -> None:
        shards = rng.integers(0, len(maps), batches * ROWS)
        places = list(zip(shards.tolist(), rng.integers(0, last[shards]).tolist(), strict=True))
        for first in range(0, len(places), ROWS):
            block = np.empty((ROWS, LENGTH + 1), np.int64)
            for row, (shard, start) in enumerate(places[first : first + ROWS]):
                block[row] = maps[shard][start : start + LENGTH + 1]

    return step


def reader(
    dataset: TokenDataset, batches: int, bounds: bool = False, packing: str = "concat", numbers: bool = False
) -> Step:
    """Rows by number into a buffer that is used again; `bounds`: and cu_seqlens, `numbers`: and positions, ids."""
    rows = RowReader(dataset, RowOptions(LENGTH, packing, isolate_documents=bounds))  # type: ignore[arg-type]
    rng = np.random.default_rng(2)
    out = rows.buffer(ROWS, numbers)

    def step() -> None:
        for numbers in rng.integers(0, rows.rows(), (batches, ROWS)):
            batch = rows.read(0, numbers, out)
            if bounds:
                cu_seqlens(batch)

    return step


def order(folder: Path, batches: int, bounds: bool = False) -> Step:
    """Batches by their position in the run: the whole of what a rank does."""
    loader = Batches({"a": (folder, 1.0)}, "train", LENGTH, seed=1, isolate_documents=bounds)
    out = Buffer(ROWS, LENGTH, bounds, numbers=False)
    position = 0

    def step() -> None:
        nonlocal position
        for _ in range(batches):
            batch = loader.rows(position, ROWS, out)
            position += ROWS
            if bounds:
                cu_seqlens(batch)

    return step


def contenders(folder: Path, batches: int, peers: list[str]) -> dict[str, Step]:
    """Name -> a round."""
    dataset = open_dataset(folder, "train")
    found = {
        "np.memmap": memmap(dataset, batches),
        "ours, rows by number": reader(dataset, batches),
        "ours, batches in order": order(folder, batches),
        "ours, best_fit rows": reader(dataset, batches, packing="best_fit"),
        "ours, with cu_seqlens": reader(dataset, batches, bounds=True),
        "ours, in order, with cu_seqlens": order(folder, batches, bounds=True),
        "ours, with cu_seqlens, positions, ids": reader(dataset, batches, bounds=True, numbers=True),
        "ours, best_fit, with cu_seqlens": reader(dataset, batches, bounds=True, packing="best_fit"),
    }
    for name in peers:
        try:
            found.update(PEERS[name](dataset, folder.with_name(f"{folder.name}-{name}"), batches, ROWS, LENGTH))
        except (ImportError, RuntimeError) as error:  # torchvision of another torch raises the latter
            print(f"{name} takes no part: {error}")
    return found


def to_fastest_peer(name: str, seconds: dict[str, list[float]]) -> str:
    """How many times as fast one of ours is as the fastest peer that gives the same, with or without boundaries."""
    bounds = "cu_seqlens" in name
    peers = [
        taken for peer, taken in seconds.items() if not peer.startswith(("ours", "np.")) and bounds == ("with" in peer)
    ]
    if not (peers and name.startswith("ours")):
        return ""
    return f"{median_ratio(seconds[name], min(peers, key=statistics.median)):.2f}"


def options(description: str | None, shards: int) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--shards", type=int, default=shards)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=200, help="of 8 rows, a round")
    parser.add_argument("--peers", nargs="*", choices=sorted(PEERS), default=sorted(PEERS))
    return parser.parse_args()


def main() -> None:
    """Makes the data, measures, prints a table."""
    arguments = options(__doc__, shards=10)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tokens"
        write(folder, arguments.tokens, arguments.shards)
        steps = contenders(folder, arguments.batches, arguments.peers)
        seconds = alternate(steps, arguments.rounds, clock=time.process_time)
    tokens = arguments.batches * ROWS * (LENGTH + 1) / 1e6
    columns = "loader", "M tokens per CPU-s", "x np.memmap", "x fastest peer"
    table = Table(*columns, title=f"{arguments.shards} shards, int64 [8, 2049]")
    for name, taken in seconds.items():
        rate, ratio = tokens / statistics.median(taken), median_ratio(taken, seconds["np.memmap"])
        table.add_row(name, f"{rate:.1f}", f"{ratio:.3f}", to_fastest_peer(name, seconds))
    Console().print(table)


if __name__ == "__main__":
    main()

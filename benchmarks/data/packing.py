"""Documents that a CPU packs in a second into rows of 2048 (best fit), and the padding, by the size of the shards.

python benchmarks/data/packing.py --shards 4000 100000 1000000

The same million documents each time, in shards of so many; their lengths are log-normal (mean 885), as in
benchmarks/data/rows.py, and the clock is that of the process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.rows import LENGTH, document_lengths
from benchmarks.timing import alternate
from data_pipeline.format.dataset import Int64
from data_pipeline.rows.best_fit import pack_best_fit


def main() -> None:
    """Measures and prints a line for each size of the shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000, help="of all shards")
    parser.add_argument("--shards", type=int, nargs="+", default=[4000, 100_000, 1_000_000], help="documents in each")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    documents = document_lengths(np.random.default_rng(0), arguments.documents)
    sizes: list[int] = arguments.shards
    steps: dict[str, Callable[[], object]] = {str(size): partial(_packed, documents, size) for size in sizes}
    for name, taken in alternate(steps, arguments.rounds, clock=time.process_time).items():
        tokens, rows = _packed(documents, int(name))
        rate = len(documents) / statistics.median(taken) / 1e6
        padding = 1 - tokens / (rows * (LENGTH + 1))
        print(f"shards of {name:>9} documents {rate:6.2f} M documents per CPU-s {padding:8.3%} padding")


def _packed(documents: Int64, size: int) -> tuple[int, int]:
    """Packs documents in shards of `size`; gives the tokens in the rows, and the rows."""
    tokens = rows = 0
    for first in range(0, len(documents), size):
        packed = pack_best_fit(documents[first : first + size], LENGTH)
        tokens += int(packed.lengths.sum())
        rows += len(packed.firsts) - 1
    return tokens, rows


if __name__ == "__main__":
    main()

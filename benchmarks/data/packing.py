"""Documents that a CPU packs in a second into rows of 2048 (best fit), and the padding, a shard at a time.

python benchmarks/data/packing.py --documents 4000 113000 1000000

Documents of log-normal lengths (mean 885), as in benchmarks/data/rows.py; the clock is that of the process.
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
from data_pipeline.rows.best_fit import Packed, pack_best_fit


def main() -> None:
    """Measures and prints a line for each size of a shard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[4000, 113_000, 1_000_000], help="of a shard")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    shards = {str(count): document_lengths(rng, count) for count in arguments.documents}
    steps: dict[str, Callable[[], Packed]] = {
        name: partial(pack_best_fit, lengths, LENGTH) for name, lengths in shards.items()
    }
    for name, taken in alternate(dict(steps), arguments.rounds, clock=time.process_time).items():
        packed = steps[name]()
        padding = 1 - packed.lengths.sum() / ((len(packed.firsts) - 1) * (LENGTH + 1))
        rate = len(shards[name]) / statistics.median(taken) / 1e6
        print(f"{name:>9} documents {rate:6.2f} M documents per CPU-s {padding:8.3%} padding")


if __name__ == "__main__":
    main()

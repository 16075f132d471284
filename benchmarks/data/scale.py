"""Opens 15 trillion tokens in 100,000 shards of 50 sources and gives rank 9,999 of 10,000 its first batch.

    python benchmarks/data/scale.py
    python benchmarks/data/scale.py --shards 1000 --tokens 150_000_000_000

The shards are sparse files in a temporary folder: all their tokens are 0, and they take no room. The last part runs in
a fresh process; time and memory of its imports are counted apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SEQUENCE_LENGTH = 8192
RANKS, RANK = 10_000, 9_999
GLOBAL_BATCH_SIZE = 20_000
STEP = 50_000
DOCUMENT = 1_000_000
"""Tokens of each document of the made-up shards."""


def build(folder: Path, sources: int, shards: int, tokens: int) -> None:
    """Data sets in `folder`, one a source, of shards that are equal among all sources."""
    from data_pipeline.format.manifest import Manifest, Shard, Split, write_manifest

    each = tokens // shards // DOCUMENT * DOCUMENT
    for number in range(sources):
        train = folder / f"source-{number:02}" / "train"
        train.mkdir(parents=True)
        found = []
        for shard in range(shards // sources):
            name = f"shard-{shard:05}"
            with open(train / f"{name}.bin", "wb") as file:
                file.truncate(each * 4)
            # Hashes are not looked at here; they take their room in the manifest.
            hashes = [f"{(number << 64) + (shard << 8) + kind:032x}" for kind in range(3)]
            found.append(Shard(name, each, each // DOCUMENT, each * 4, *hashes))
        split = Split(each * len(found), each // DOCUMENT * len(found), DOCUMENT, each * len(found) * 4, tuple(found))
        write_manifest(train.parent, Manifest(train.parent.name, "<u4", 128_256, 128_001, None, 0, {"train": split}))


def megabytes() -> float:
    """Of memory of this process: the most that it had so far, and the library code that it shares."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def first_batch(folder: Path, lanes: bool) -> dict[str, float]:
    """Seconds, of the clock and of the CPU, and MB: of the imports, of opening and of the last rank's first batches."""
    seconds, memory = [(time.perf_counter(), time.process_time())], [megabytes()]

    def lap() -> None:
        seconds.append((time.perf_counter(), time.process_time()))
        memory.append(megabytes())

    from data_pipeline.loader.batches import Batches
    from data_pipeline.loader.settings import OrderOptions
    from data_pipeline.order.lanes import Lanes

    lap()
    order = OrderOptions(lanes=Lanes(1250, 4, GLOBAL_BATCH_SIZE) if lanes else None)
    sources = {path.name: (path, 1.0 + k) for k, path in enumerate(sorted(folder.iterdir()))}
    batches = Batches(sources, "train", SEQUENCE_LENGTH, 1, order=order)
    lap()
    share = GLOBAL_BATCH_SIZE // RANKS
    for step in (STEP, STEP + 1, STEP + 2):
        batches.rows(step * GLOBAL_BATCH_SIZE + RANK * share, share)
        lap()
    size = len(json.dumps(batches.state(STEP * GLOBAL_BATCH_SIZE)))
    lap()
    parts = ["imports", "open", "first batch", "second (and a plan of 16)", "third", "state and fingerprint"]
    spans = dict(zip(parts, pairwise(seconds), strict=True)) | {"open + first batch": (seconds[1], seconds[3])}
    found = {f"{part}: s": after[0] - before[0] for part, (before, after) in spans.items()}
    found |= {f"{part}: CPU-s": after[1] - before[1] for part, (before, after) in spans.items()}
    return found | {
        "MB of imports": memory[1],
        "MB after the first batch, imports included": memory[3],
        "MB at the end": memory[-1],
        "bytes of state": size,
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=15 * 10**12)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=50)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lanes", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(first_batch(args.read, args.lanes)))
        return
    with tempfile.TemporaryDirectory() as name:
        build(Path(name), args.sources, args.shards, args.tokens)
        print(f"{args.tokens:,} tokens, {args.shards:,} shards, {args.sources} sources; rank {RANK:,} of {RANKS:,}")
        for kind, flags in (("whole", []), ("lanes", ["--lanes"])):
            command = [sys.executable, __file__, "--read", name, *flags]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for part, value in found.items():
                print(f"{kind:6} {part:45} {value:10.3f}" if value < 10 else f"{kind:6} {part:45} {value:10,.0f}")


if __name__ == "__main__":
    main()

"""What reading a data set in a store costs: through the cache, from a local folder, with one request for each row.

    python benchmarks/data/stream.py --store s3 --megabytes 200

Rows of 2049 tokens at random places, 8 a batch. `--store s3` starts a server of S3's protocol on loopback (moto), which
is slower than a real one in bandwidth and faster in latency; `--store file` reads the same files as `file://`.
Prints rows per second, the ratios to local reading, and how fast an empty cache is filled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.timing import alternate, median_ratio
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.writer import DatasetWriter
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import connect

ROW, BATCH = 2049, 8
SHARD_TOKENS = 8_000_000


def make_set(folder: Path, megabytes: int) -> None:
    """Random tokens of 2 bytes in documents of 1,000, in shards of 16 MB."""
    random = np.random.default_rng(0)
    with DatasetWriter(folder, vocab_size=50_000, eod_id=0, shard_tokens=SHARD_TOKENS) as writer:
        for _ in range(max(1, megabytes * 500_000 // SHARD_TOKENS)):
            ids = random.integers(1, 50_000, SHARD_TOKENS)
            ids[999::1000] = 0
            writer.add("train", ids, np.full(SHARD_TOKENS // 1000, 1000))
        writer.finish()


@contextmanager
def open_store(kind: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of the data set and the options of its store."""
    if kind == "file":
        yield f"file://{folder}", {}
        return
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    store, _ = connect("s3://tokens", options)
    store.mkdir("tokens")
    store.put(str(folder), "tokens/set", recursive=True)
    yield "s3://tokens/set", options
    server.stop()


def rows_of(dataset: TokenDataset, batches: int) -> Callable[[], None]:
    """Reads batches of rows at the same random places each time."""
    starts = np.random.default_rng(1).integers(0, dataset.tokens - ROW, (batches, BATCH))

    def read() -> None:
        for start in starts.ravel().tolist():
            dataset.read(start, start + ROW)

    return read


def requests_of(url: str, options: dict[str, Any], dataset: TokenDataset, batches: int) -> Callable[[], None]:
    """The same rows (of one shard each), with one ranged request for each."""
    store, root = connect(url, options)
    starts = np.random.default_rng(1).integers(0, dataset.tokens - ROW, (batches, BATCH))
    shards = np.searchsorted(dataset.shard_starts, starts, side="right") - 1
    local = np.minimum(starts - dataset.shard_starts[shards], SHARD_TOKENS - ROW) * 2

    def read() -> None:
        for places, numbers in zip(local.tolist(), shards.tolist(), strict=True):
            for place, number in zip(places, numbers, strict=True):
                name = f"{root}/train/{dataset.shards[number].name}.bin"
                np.frombuffer(store.cat_file(name, start=place, end=place + ROW * 2), "<u2").astype(np.int64)

    return read


def fill_rate(url: str, options: dict[str, Any], folder: Path) -> float:
    """MB a second at which an empty cache is filled with all shards, hashes compared."""
    dataset = open_dataset(url, "train", CacheOptions(folder, storage_options=options))
    start = time.perf_counter()
    for shard in range(len(dataset.shards)):
        dataset.files.path(shard, "bin")
    return dataset.tokens * 2 / 1e6 / (time.perf_counter() - start)


def main() -> None:
    """Runs the comparison on one store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("file", "s3"), default="file")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=500, help="a round; requests for rows do a tenth")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_set(folder / "set", arguments.megabytes)
        with open_store(arguments.store, folder / "set") as (url, options):
            rate = fill_rate(url, options, folder / "cache")
            local = open_dataset(folder / "set", "train")
            cached = open_dataset(url, "train", CacheOptions(folder / "cache", storage_options=options))
            few = max(1, arguments.batches // 10)
            steps = {
                "local folder": rows_of(local, arguments.batches),
                "through the cache": rows_of(cached, arguments.batches),
                "one request a row": requests_of(url, options, local, few),
            }
            seconds = alternate(steps, arguments.rounds, warmup=1)
    print(f"{arguments.store}: {arguments.megabytes} MB, an empty cache is filled at {rate:.0f} MB/s")
    seconds["one request a row"] = [value * arguments.batches / few for value in seconds["one request a row"]]
    for name, values in seconds.items():
        rows = arguments.batches * BATCH / statistics.median(values)
        print(f"{name:20} {rows:12,.0f} rows/s   {median_ratio(values, seconds['local folder']):.4f} of local")


if __name__ == "__main__":
    main()

"""A store on a local folder that fails, cuts and damages what it is told to, and logs every read."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.manifest import Manifest
from data_pipeline.format.writer import DatasetWriter
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import Retries

QUICK = Retries(attempts=4, first_wait=0.001, longest_wait=0.002)


class FaultyFileSystem(LocalFileSystem):
    """`faulty:///folder`; options say what goes wrong."""

    protocol = "faulty"
    cachable = False

    def __init__(self, log="", fail_every=0, short_every=0, flip=None, delay=0.0, kill_at=0, **kwargs):
        """`flip`: file name -> how many reads of it get one wrong byte; `kill_at`: the read that ends the process."""
        super().__init__(**kwargs)
        self.log, self.fail_every, self.short_every, self.delay, self.kill_at = (
            log, fail_every, short_every, delay, kill_at
        )  # fmt: skip
        self.flip = Counter(flip or {})
        self.reads = 0

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("faulty://").rstrip("/")

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.reads += 1
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{os.path.basename(path)} {start or 0} {os.getpid()}\n")
        if self.reads == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.delay)
        if self.fail_every and self.reads % self.fail_every == 0:
            raise ConnectionResetError(f"connection lost in read {self.reads}")
        data = bytearray(super().cat_file(path, start, end, **kwargs))
        if self.flip[os.path.basename(path)] > 0:
            self.flip[os.path.basename(path)] -= 1
            data[len(data) // 2] ^= 1
        if self.short_every and self.reads % self.short_every == 0:
            data = data[: len(data) // 2]
        return bytes(data)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def build_set(folder: Path, shards: int, shard_tokens: int = 3000, seed: int = 0) -> Manifest:
    """A data set of random tokens (2 bytes each) in as many shards, of 3 documents each, every one of equal size."""
    random = np.random.default_rng(seed)
    with DatasetWriter(folder, vocab_size=257, eod_id=256, shard_tokens=shard_tokens) as writer:
        for _ in range(shards):
            ends = np.asarray([shard_tokens // 2, shard_tokens // 4 * 3, shard_tokens])
            ids = random.integers(0, 256, shard_tokens)
            ids[ends - 1] = 256
            writer.add("train", ids, np.diff(ends, prepend=0))
        return writer.finish()


def open_faulty(folder: Path, cache: Path, limit_bytes: int = 1 << 30, split: str = "train", **faults) -> TokenDataset:
    """Opens a data set through the faulty store. Options of the cache are told apart from faults by their names."""
    options = {name: faults.pop(name) for name in ("on_damage", "quarantine", "ahead_bytes") if name in faults}
    return open_dataset(
        f"faulty://{folder}",
        split,
        CacheOptions(cache, limit_bytes, retries=QUICK, storage_options=faults, **options),
    )


def in_cache(folder: Path) -> dict[str, int]:
    """Bytes of each shard file in a cache folder, by name."""
    found = {}
    for path in folder.glob("[!.]*/*/*"):
        try:
            found[path.name] = path.stat().st_size
        except FileNotFoundError:  # dropped or renamed meanwhile
            continue
    return found


def reads(log: Path) -> Counter:
    """How often each (file, offset) was read."""
    return Counter(tuple(line.split()[:2]) for line in log.read_text().splitlines())

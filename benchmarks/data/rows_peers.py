"""The loaders that benchmarks/data/rows.py is compared with; each import fails where its package is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.format.dataset import TokenDataset

Step = Callable[[], object]


def datatrove(dataset: TokenDataset, folder: Path, batches: int, rows: int, length: int) -> dict[str, Step]:
    """DatatroveFolderDataset on the same files, rows by a permutation; positions by its scan for EOD."""
    import torch
    from datatrove.utils.dataset import DatatroveFolderDataset

    folder.mkdir()
    for number, shard in enumerate(dataset.shards):
        (folder / f"{shard.name}.ds").symlink_to(dataset.files.path(number, "bin"))
    found = {}
    for name, eod in (("datatrove", None), ("datatrove, with positions", dataset.manifest.eod_id)):
        data = DatatroveFolderDataset(
            str(folder),
            length,
            filename_pattern="*.ds",
            recursive=False,
            return_positions=eod is not None,
            positions_from_eos_token_id=eod,
        )
        rng = np.random.default_rng(3)

        def step(data: Any = data, rng: np.random.Generator = rng) -> None:
            for numbers in rng.integers(0, len(data), (batches, rows)).tolist():
                samples = [data[number] for number in numbers]
                for key in samples[0]:
                    torch.stack([sample[key] for sample in samples])

        found[name] = step
    return found


def litdata(dataset: TokenDataset, folder: Path, batches: int, rows: int, length: int) -> dict[str, Step]:
    """StreamingDataset with its TokensLoader on chunks of the same tokens, shuffled."""
    import torch
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_size=8192 * (length + 1), item_loader=TokensLoader(length + 1))
    for number, start in enumerate(range(0, dataset.tokens, 1 << 20)):
        tokens = dataset.read(start, min(start + (1 << 20), dataset.tokens))
        cache._add_item(number, torch.from_numpy(tokens.astype(np.int32)))
    cache.done()
    cache.merge()
    data = StreamingDataset(str(folder), item_loader=TokensLoader(length + 1), shuffle=True)
    return {"litdata": _take(iter(_again(data)), batches, rows)}


def mosaicml(dataset: TokenDataset, folder: Path, batches: int, rows: int, length: int) -> dict[str, Step]:
    """StreamingDataset on MDS shards of the same tokens cut into rows, shuffled."""
    from streaming import MDSWriter, StreamingDataset

    class Rows(StreamingDataset):
        """With nothing added, as its users write it."""

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{length + 1}"}) as writer:
        for start in range(0, dataset.tokens - length, length + 1):
            writer.write({"tokens": dataset.read(start, start + length + 1)})
    data = Rows(local=str(folder), shuffle=True, batch_size=rows)
    samples = (sample["tokens"].astype(np.int64) for sample in _again(data))
    return {"mosaicml-streaming": _take(samples, batches, rows, np.stack)}


def _again(data: Any) -> Iterator[Any]:
    while True:
        yield from data


def _take(samples: Iterator[Any], batches: int, rows: int, stack: Callable[[list[Any]], Any] | None = None) -> Step:
    import torch

    def step() -> None:
        for _ in range(batches):
            taken = [next(samples) for _ in range(rows)]
            (stack or (lambda found: torch.stack(found).long()))(taken)

    return step


PEERS = {"datatrove": datatrove, "litdata": litdata, "mosaicml": mosaicml}

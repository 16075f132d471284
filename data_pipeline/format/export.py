"""A data set in the format of another library: what `megaxf data export` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.folder import Building, link_file
from data_pipeline.format.foreign.megatron import write_index
from data_pipeline.format.manifest import read_manifest, write_whole
from data_pipeline.format.reshard import copy_tokenizer
from data_pipeline.format.verify import verify


def export_megatron(
    folder: str | Path, output: str | Path, copy: bool = False, advance: Callable[[int], Any] = lambda size: None
) -> dict[str, list[Path]]:
    """Writes `output/<split>/<shard>.bin` and `.idx`, and returns the paths without endings, by split.

    The ids are hard-linked unless `copy`. `<split>.txt` names the pairs with their tokens as weights, for Megatron's
    --train-data-path and the like. Everything is verified first, since Megatron has no hashes. Raises DataError.
    """
    output = Path(output)
    if output.exists():
        raise DataError("exists already; choose another --output", output)
    manifest = read_manifest(folder)
    written: dict[str, list[Path]] = {}
    with Building(output) as building:
        verify(folder, advance)
        copy_tokenizer(Path(folder), building.path)
        for split, record in manifest.splits.items():
            dataset = open_dataset(folder, split)
            (building.path / split).mkdir()
            for number, shard in enumerate(record.shards):
                link_file(dataset.files.path(number, "bin"), building.path / split / f"{shard.name}.bin", copy)
                write_index(building.path / split / f"{shard.name}.idx", dataset, number)
            written[split] = [output / split / shard.name for shard in record.shards]
            pairs = [f"{shard.tokens} {path}" for shard, path in zip(record.shards, written[split], strict=True)]
            write_whole(building.path / f"{split}.txt", "\n".join([*pairs, ""]).encode())
        building.finish()
    return written

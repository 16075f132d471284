"""The same documents in the same order, in shards of another size."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.manifest import Manifest, read_manifest
from data_pipeline.format.pieces import pieces_of
from data_pipeline.format.verify import verify
from data_pipeline.format.writer import DatasetWriter


def reshard(
    folder: str | Path,
    output: str | Path,
    shard_tokens: int,
    overwrite: bool = False,
    advance: Callable[[int], Any] = lambda size: None,
) -> Manifest:
    """Writes the data set anew at `output`; `advance` hears of bytes, of which each is read twice.

    What is read is verified first: else damage would get a good hash. Raises DataError.
    """
    if shard_tokens < 1:
        raise DataError(f"--shard-tokens {shard_tokens} is not at least 1")
    manifest = read_manifest(folder)
    with DatasetWriter(
        output,
        vocab_size=manifest.vocab_size,
        eod_id=manifest.eod_id,
        bos_id=manifest.bos_id,
        shard_tokens=shard_tokens,
        overwrite=overwrite,
    ) as writer:
        verify(folder, advance)
        names: list[str] = []
        for split, record in manifest.splits.items():
            dataset = open_dataset(folder, split)
            names = dataset.origin_names()
            text_bytes = record.text_bytes
            for piece in pieces_of(dataset):
                writer.add(split, piece.ids, piece.lengths, text_bytes, piece.origins)
                text_bytes = 0  # known of the split as a whole, so the first piece has brought all of it
                advance(piece.ids.nbytes)
        copy_tokenizer(Path(folder), writer.building)
        return writer.finish(
            name=manifest.name,
            tokenizer=manifest.tokenizer,
            sources=manifest.sources,
            settings={**manifest.settings, "shard_tokens": shard_tokens},
            origins=None if manifest.origins_xxh3_128 is None else names,
        )


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer of a data set into another, where it has one."""
    if (source / "tokenizer").is_dir():
        shutil.copytree(source / "tokenizer", target / "tokenizer")

"""Says what a shard folder holds: the end of `prepare`, and `megaxf inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from data_pipeline.format.manifest import Manifest, Source


def summary(folder: str | Path, manifest: Manifest) -> dict[str, Any]:
    """The counts of a manifest as plain data, for --json."""
    return {
        "folder": str(folder),
        "name": manifest.name,
        "digest": manifest.digest,
        "vocab_size": manifest.vocab_size,
        "dtype": manifest.dtype,
        "tokenizer": manifest.tokenizer,
        "splits": {
            name: {
                "documents": split.documents,
                "tokens": split.tokens,
                "longest": split.longest,
                "text_bytes": split.text_bytes,
                "shards": len(split.shards),
            }
            for name, split in manifest.splits.items()
        },
        "sources": [vars(source) for source in manifest.sources],
        "settings": manifest.settings,
    }


def show(folder: str | Path, manifest: Manifest, as_json: bool) -> None:
    """What a command says of the data set that it has made or was asked about."""
    if as_json:
        print(json.dumps(summary(folder, manifest), indent=1))
    else:
        print_manifest(folder, manifest, Console())


def print_manifest(folder: str | Path, manifest: Manifest, console: Console) -> None:
    """Tables of the splits and the sources."""
    tokenizer = manifest.tokenizer.get("kind", "unknown")
    console.print(f"[bold]{manifest.name}[/bold]: {folder}", highlight=False, soft_wrap=True)
    ending = f"documents end with token {manifest.eod_id}"
    console.print(f"vocabulary {manifest.vocab_size:,} ({tokenizer}), {manifest.dtype}, {ending}")
    console.print(
        _table(("split", "documents", "tokens", "text", "bytes/token", "longest", "shards"), _splits(manifest))
    )
    if manifest.sources:
        header = ("source", "split", "documents", "tokens", "bytes/token", "longest", "left out")
        console.print(_table(header, _sources(manifest)))
    for source in manifest.sources:
        for reason, count in left_out(source).items():
            console.print(
                f"left out of {source.name}: {count:,} x {reason}", style="yellow", highlight=False, soft_wrap=True
            )


def left_out(source: Source) -> dict[str, int]:
    """How many records became no documents, by reason."""
    counts = {"empty": source.empties, "duplicate": source.duplicates, **source.filtered, **source.errors}
    return {reason: count for reason, count in counts.items() if count}


def _splits(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for name, split in manifest.splits.items():
        # EOD stands for no text, but it is a token that is trained on: it counts.
        yield (
            name,
            f"{split.documents:,}",
            f"{split.tokens:,}",
            megabytes(split.text_bytes) if split.text_bytes else "-",
            _ratio(split.text_bytes, split.tokens),
            f"{split.longest:,}",
            f"{len(split.shards):,}",
        )


def _sources(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for source in manifest.sources:
        # These belong to no split: they stand in the first line of the source.
        tokens, out = sum(source.tokens.values()), sum(left_out(source).values())
        whole = [_ratio(source.text_bytes, tokens), f"{source.longest:,}", f"{out:,}"]
        for split, documents in source.documents.items():
            yield (source.name, split, f"{documents:,}", f"{source.tokens[split]:,}", *whole)
            whole = ["", "", ""]
        if not source.documents:
            yield (source.name, "-", "0", "0", *whole)
    if len(manifest.sources) > 1:
        splits, sources = manifest.splits.values(), manifest.sources
        tokens = sum(split.tokens for split in splits)
        yield (
            "all",
            "",
            f"{sum(split.documents for split in splits):,}",
            f"{tokens:,}",
            _ratio(sum(split.text_bytes for split in splits), tokens),
            f"{max(split.longest for split in splits):,}",
            f"{sum(sum(left_out(source).values()) for source in sources):,}",
        )


def _ratio(text_bytes: int, tokens: int) -> str:
    return f"{text_bytes / tokens:.2f}" if text_bytes and tokens else "-"


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for index, title in enumerate(header):
        table.add_column(title, justify="right" if index and title != "split" else "left")
    for row in rows:
        table.add_row(*row)
    return table


def megabytes(count: int) -> str:
    """A number of bytes for people, in powers of 1000."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if unit != "B" else f"{count} B"

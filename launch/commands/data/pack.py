"""`megaxf data pack`: rows in which no document is cut that fits. Arguments only; the work is in data_pipeline.rows."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial

HELP = "put the documents of a shard folder into rows of one length, none cut that fits"

EPILOG = """\
Writes an index beside each shard (<shard>.pack-N, under 1 % of its size); the tokens stay as they are, so that a folder
can be packed for any number of sequence lengths. A run that asks for packed rows makes what is missing by itself; this
command does it before, with many processes, or where runs may not write.

  best_fit   a document longer than a row is cut into whole rows, the rest goes with the short ones: nothing is lost
  bos_fit    every piece is the beginning of a document: what is longer than a row is cropped and thrown away

examples:
  megaxf data pack tokens/ --sequence-length 4096
  megaxf data pack tokens/ --sequence-length 4096 --packing bos_fit --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="DIR", help="a shard folder")
    parser.add_argument("--sequence-length", type=int, required=True, metavar="N", help="tokens of a row, e.g. 4096")
    parser.add_argument("--packing", choices=("best_fit", "bos_fit"), default="best_fit", help="(default: %(default)s)")
    parser.add_argument("--split", default="train", metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Packs and says what came of it."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from data_pipeline.errors import DataError
    from data_pipeline.format.dataset import open_dataset
    from data_pipeline.rows.packed import pack

    if arguments.sequence_length < 1 or arguments.processes < 1:
        raise DataError("--sequence-length and --processes must be 1 or more")
    dataset = open_dataset(arguments.path, arguments.split)
    console = Console(stderr=True)
    columns = ("packing shards", MofNCompleteColumn(), TimeRemainingColumn())
    with (
        ProcessPoolExecutor(arguments.processes) as pool,
        Progress(*columns, console=console, disable=arguments.json or not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=len(dataset.shards))
        advance = partial(progress.advance, task)
        mapper = partial(pool.map, chunksize=8) if arguments.processes > 1 else map
        summary = pack(dataset, arguments.sequence_length, arguments.packing, mapper, advance)
    rows, tokens, thrown = sum(summary.rows), sum(summary.tokens), sum(summary.thrown_away)
    room = rows * (arguments.sequence_length + 1)
    figures = {
        "documents": dataset.documents,
        "rows": rows,
        "padding": round(1 - tokens / room, 6) if room else 0.0,
        "thrown_away": round(thrown / dataset.tokens, 6) if dataset.tokens else 0.0,
    }
    if arguments.json:
        print(json.dumps({"split": arguments.split, "packing": arguments.packing, **figures}, indent=1))
    else:
        shares = f"{figures['padding']:.3%} of them padding, {figures['thrown_away']:.3%} of the tokens thrown away"
        print(f"{dataset.documents:,} documents in {rows:,} rows of {arguments.sequence_length:,}; {shares}")
    return 0

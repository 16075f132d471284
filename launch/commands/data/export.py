"""`megaxf data export`: shards for another library. Arguments only; the work is in data_pipeline.format.export."""

from __future__ import annotations

import argparse

HELP = "write a shard folder as the indexed data sets of Megatron-LM"

EPILOG = """\
Every shard becomes a pair of files: .bin, which has the same bytes and is hard-linked where the file system allows it,
and .idx. train.txt and validation.txt name the pairs with their numbers of tokens as weights. Everything is verified
first, since Megatron has no hashes.

examples:
  megaxf data export tokens/ --output megatron/
  megaxf data export tokens/ --output /other/disk/megatron --copy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("folder", metavar="DIR", help="a shard folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--copy", action="store_true", help="copy the ids, make no hard links")
    parser.add_argument("--json", action="store_true", help="print JSON: the paths, without their endings, by split")


def run(arguments: argparse.Namespace) -> int:
    """Exports and says where to."""
    import json
    from pathlib import Path

    from data_pipeline.format.export import export_megatron
    from data_pipeline.format.manifest import read_manifest
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.verify import bytes_to_read

    total = bytes_to_read(read_manifest(arguments.folder))
    with bytes_progress("verifying", total, quiet=arguments.json) as advance:
        written = export_megatron(arguments.folder, arguments.output, arguments.copy, advance)
    if arguments.json:
        print(json.dumps({split: [str(path) for path in paths] for split, paths in written.items()}, indent=1))
    else:
        for split, paths in written.items():
            pairs = "1 pair" if len(paths) == 1 else f"{len(paths):,} pairs"
            print(f"{split}: {pairs} of .bin and .idx, listed in {Path(arguments.output) / f'{split}.txt'}")
    return 0

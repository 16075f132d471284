"""`megaxf data inspect`: what a shard folder holds. Arguments only; the work is in data_pipeline.format."""

from __future__ import annotations

import argparse

HELP = "show what a data set holds: splits, sources, tokenizer"

EPILOG = """\
Sizes of all files are compared with the manifest; `megaxf data verify` reads and checks every byte.

examples:
  megaxf data inspect tokens/
  megaxf data inspect s3://bucket/tokens --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="DIR", help="a shard folder, or the URL of one in a store")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks the sizes and prints the tables."""
    from rich.console import Console

    from data_pipeline.format.files import check_sizes
    from data_pipeline.format.report import show
    from data_pipeline.stream.place import open_place

    place = open_place(arguments.path)
    manifest = place.manifest()
    for split in manifest.splits:
        check_sizes(place.name, manifest, split, place.sizes(split))
    show(arguments.path, manifest, arguments.json)
    if not arguments.json:
        said = "sizes agree with the manifest; `megaxf data verify` reads and checks every byte"
        Console().print(said, style="green")
    return 0

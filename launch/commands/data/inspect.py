"""`megaxf data inspect`: what a shard folder holds. Arguments only; the work is in data_pipeline.format."""

from __future__ import annotations

import argparse

HELP = "show what a shard folder holds: splits, sources, tokenizer"

EPILOG = """\
Sizes of all files are compared with the manifest; `megaxf data verify` reads and checks every byte.

examples:
  megaxf data inspect tokens/
  megaxf data inspect tokens/ --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="DIR", help="a shard folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Checks the sizes and prints the tables."""
    from rich.console import Console

    from data_pipeline.format.files import check_sizes
    from data_pipeline.format.manifest import read_manifest
    from data_pipeline.format.report import show

    manifest = read_manifest(arguments.path)
    for split in manifest.splits:
        check_sizes(arguments.path, manifest, split)
    show(arguments.path, manifest, arguments.json)
    if not arguments.json:
        Console().print(
            "sizes agree with the manifest; `megaxf data verify` reads and checks every byte", style="green"
        )
    return 0

"""`megaxf inspect`: what is in this folder?"""

from __future__ import annotations

import argparse

HELP = "show what a shard folder holds, and check that it is whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", metavar="PATH", help="a shard folder made by `megaxf prepare`")
    parser.add_argument("--verify", action="store_true", help="read every file and compare it with its recorded hash")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Tells the kind of the folder and prints what it holds."""
    from data_pipeline.errors import DataError
    from data_pipeline.manifest import is_dataset

    if is_dataset(arguments.path):
        return _shards(arguments)
    raise DataError("is not a shard folder: no manifest.json of megaxf prepare", arguments.path)


def _shards(arguments: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from data_pipeline.dataset import check_sizes, verify
    from data_pipeline.manifest import read_manifest
    from data_pipeline.report import megabytes, print_manifest, summary

    manifest = read_manifest(arguments.path)
    for split in manifest.splits:
        check_sizes(arguments.path, manifest, split)
    checked = verify(arguments.path) if arguments.verify else None
    if arguments.json:
        print(json.dumps({**summary(arguments.path, manifest), "verified_bytes": checked}, indent=1))
        return 0
    print_manifest(arguments.path, manifest, Console())
    state = "sizes agree with the manifest; --verify reads and checks every byte"
    Console().print(state if checked is None else f"verified: {megabytes(checked)}, every hash agrees", style="green")
    return 0

"""`megaxf data merge`: several shard folders as one. Arguments only; the work is in data_pipeline.format.merge."""

from __future__ import annotations

import argparse

HELP = "make one shard folder of several that one tokenizer made"

EPILOG = """\
The documents of each folder follow those of the folder before it. Shards keep their bytes and get new numbers: files
are hard-linked where the file system allows it, so that nothing is read or written twice. To mix sources by weight
while training, leave them apart and name them all in the run (data.sources).

examples:
  megaxf data merge tokens/2025 tokens/2026 --output tokens/both
  megaxf data merge part-*/ --output /other/disk/whole --copy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("folders", nargs="+", metavar="DIR", help="shard folders")
    parser.add_argument("--output", required=True, metavar="DIR", help="the shard folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace a shard folder that is already there")
    parser.add_argument("--name", default="", help="title in the manifest (default: the folder's name)")
    parser.add_argument("--copy", action="store_true", help="copy the files, make no hard links")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Merges and prints what the new folder holds."""
    from data_pipeline.format.manifest import read_manifest
    from data_pipeline.format.merge import merge
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.report import show

    splits = [split for folder in arguments.folders for split in read_manifest(folder).splits.values()]
    total = sum(shard.bytes for split in splits for shard in split.shards)
    with bytes_progress("merging", total, quiet=arguments.json) as advance:
        manifest = merge(
            arguments.folders, arguments.output, arguments.name, arguments.copy, arguments.overwrite, advance
        )
    show(arguments.output, manifest, arguments.json)
    return 0

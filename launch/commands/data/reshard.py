"""`megaxf data reshard`: shards of another size. Arguments only; the work is in data_pipeline.format.reshard."""

from __future__ import annotations

import argparse

HELP = "cut a shard folder into shards of another size"

EPILOG = """\
The documents and their order stay as they are. Every byte is verified before it is written anew.

examples:
  megaxf data reshard tokens/ --shard-tokens 50000000 --output tokens-small-shards/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("folder", metavar="DIR", help="a shard folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="the shard folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace a shard folder that is already there")
    parser.add_argument("--shard-tokens", type=int, required=True, metavar="N", help="tokens in a shard, at most")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Cuts anew and prints what the new folder holds."""
    from data_pipeline.format.manifest import read_manifest
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.report import show
    from data_pipeline.format.reshard import reshard
    from data_pipeline.format.verify import bytes_to_read

    total = 2 * bytes_to_read(read_manifest(arguments.folder))
    with bytes_progress("verifying and cutting", total, quiet=arguments.json) as advance:
        manifest = reshard(arguments.folder, arguments.output, arguments.shard_tokens, arguments.overwrite, advance)
    show(arguments.output, manifest, arguments.json)
    return 0

"""`megaxf data verify`: reads every byte of a data set. Arguments only; the work is in data_pipeline.format."""

from __future__ import annotations

import argparse

HELP = "read a data set and name every file and MiB that is not as it was written"

EPILOG = """\
Compares the size and the hash of each file and of each MiB with what was recorded when they were written, looks for
files that do not belong there, and checks that documents end where the lengths say. All faults are listed; the exit
code is 2 if there are any.

examples:
  megaxf data verify tokens/
  megaxf data verify s3://bucket/tokens    each shard is fetched, checked and dropped again
  megaxf data verify tokens/ --json | jq '.faults[].path'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="DIR", help="a shard folder, or the URL of one in a store")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Reads, compares, lists."""
    import json

    from rich.console import Console

    from data_pipeline.format.files import raise_faults
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.report import megabytes, print_manifest, summary
    from data_pipeline.format.verify import bytes_to_read, find_faults
    from data_pipeline.stream.place import open_place

    place = open_place(arguments.path)
    manifest = place.manifest()
    with bytes_progress("verifying", bytes_to_read(manifest), quiet=arguments.json) as advance:
        found = find_faults(place, advance)
    if arguments.json:
        faults = [fault._asdict() for fault in found.faults]
        verdict = {"verified_bytes": found.bytes, "faults": faults}
        print(json.dumps({**summary(arguments.path, manifest), **verdict}, indent=1))
        return 2 if faults else 0
    raise_faults(found.faults, named=None)
    print_manifest(arguments.path, manifest, Console())
    Console().print(f"verified: {megabytes(found.bytes)}, every hash agrees", style="green", highlight=False)
    return 0

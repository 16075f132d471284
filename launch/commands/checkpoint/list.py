"""`megaxf checkpoint list`: which checkpoints are there. Arguments only; the work is in megaxf.checkpoint.report."""

from __future__ import annotations

import argparse

HELP = "list checkpoints: step, tokens, loss, size, age, and whether they are complete"

EPILOG = """\
PATH is a run folder, a folder of checkpoints, or one checkpoint; on a disk or in a store (s3://bucket/folder).
Sizes of all files are compared with the manifest; `megaxf checkpoint verify` reads and checks every byte.
The exit code is 2 where one is not complete.

examples:
  megaxf checkpoint list runs/mine
  megaxf checkpoint list runs/mine --json | jq '.[] | select(.fault == null) | .path'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="PATH", help="a run folder, a folder of checkpoints, or a checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Looks, and prints a line for each."""
    import json

    from rich.console import Console

    from megaxf.checkpoint.finding import find_all
    from megaxf.checkpoint.report import summary, table

    found = [summary(listed) for listed in find_all(arguments.path)]
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        console = Console()
        console.print(table(found))
        for one in found:
            if one["fault"]:
                console.print(f"cannot be loaded: {one['fault']}", style="red", highlight=False, soft_wrap=True)
    return 2 if any(one["fault"] for one in found) else 0

"""`megaxf checkpoint inspect`: what a checkpoint holds. Arguments only; the work is in megaxf.checkpoint.report."""

from __future__ import annotations

import argparse

HELP = "show what a checkpoint holds: parameters, sizes, settings, place in the data"

EPILOG = """\
PATH is a checkpoint, or a run folder or folder of checkpoints, of which the newest complete one is shown. No tensor is
read; `megaxf checkpoint verify` reads and checks every byte.

examples:
  megaxf checkpoint inspect runs/mine
  megaxf checkpoint inspect runs/mine/checkpoints/step-00001000 --json | jq '.parameters[].shape'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("path", metavar="PATH", help="a checkpoint, a run folder, or a folder of checkpoints")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Finds it and prints what it says of itself."""
    import json

    from rich.console import Console

    from megaxf.checkpoint import resolve
    from megaxf.checkpoint.report import details, show

    found = details(resolve(arguments.path))
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, Console())
    return 0

"""`megaxf plan memory`: what a rank of a run holds. Arguments only; the work is in megaxf.plan.memory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "list what a rank of a run holds in memory, item by item, and the most at one time"

EPILOG = """\
SETTING is section.key=value with a value in YAML, applied after the file, as for megaxf pretrain.

examples:
  megaxf plan memory run.yaml --world-size 64
  megaxf plan memory run.yaml --world-size 64 train.recompute=selective --memory 80 -o memory.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run_file", help="a YAML file, such as those in configs/runs")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="what a device has: does it fit?")
    parser.add_argument("--cpu", action="store_true", help="ranks on CPUs, whose loss works in smaller chunks")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="a picture: a bar a pipeline stage")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Counts, prints, draws."""
    from megaxf.config import load_run
    from megaxf.config_errors import ConfigError
    from megaxf.plan.memory.ledger import ledgers
    from megaxf.plan.memory.page import GIB, draw, page, values

    if arguments.memory is not None and not 0 < arguments.memory < float("inf"):
        raise ConfigError("command line", [f"--memory = {arguments.memory} is no size; use a positive number of GiB"])
    limit = None if arguments.memory is None else arguments.memory * GIB
    settings = load_run(arguments.run_file, arguments.settings, arguments.world_size)
    found = ledgers(settings, arguments.world_size, "cpu" if arguments.cpu else "cuda")
    print(json.dumps([values(ledger) for ledger in found], indent=1) if arguments.json else page(found, limit))
    if arguments.output:
        draw(found, arguments.output, limit)
    return 0

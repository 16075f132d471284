"""`megaxf plan hardware`: the GPUs that the planner knows. Arguments only; the work is in megaxf.plan.throughput."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "list the GPUs, nodes and networks that the planner knows, with their prices"

EPILOG = """\
A file of your own is written as configs/hardware.yaml is; its entries come before the shipped ones:
  ours: {device: H100, architecture: hopper, memory_gb: 80, memory_tb_s: 3.35, node_gpus: 8, link_gb_s: 450,
         network_gb_s: 25, dollars_per_hour: 1.80}

examples:
  megaxf plan hardware
  megaxf plan hardware --hardware cluster.yaml --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a table of your own beside the shipped one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Reads, prints."""
    from dataclasses import asdict

    from megaxf.plan.output import as_json
    from megaxf.plan.throughput.hardware import table
    from megaxf.plan.throughput.page import listing

    known = table(arguments.hardware)
    entries = {name: asdict(entry) for name, entry in known.items()}
    print(as_json(entries) if arguments.json else listing(known))
    return 0

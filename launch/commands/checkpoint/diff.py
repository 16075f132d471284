"""`megaxf checkpoint diff`: how two checkpoints differ. Arguments only; the work is in megaxf.checkpoint.comparing."""

from __future__ import annotations

import argparse

HELP = "compare two checkpoints: settings, and how far weights and optimizer moments are apart"

EPILOG = """\
A and B are checkpoints, or run folders of which the newest complete one is taken. Of each tensor the largest absolute
difference is told, and the largest relative one: |a - b| / max(|a|, |b|). One tensor of each is in memory at a time.

examples:
  megaxf checkpoint diff runs/mine runs/other
  megaxf checkpoint diff runs/mine/checkpoints/step-00000010 runs/mine/checkpoints/step-00000020 --top 5
  megaxf checkpoint diff runs/mine s3://bucket/mine --json | jq .equal
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", help="a checkpoint, or a run folder")
    parser.add_argument("b", metavar="B", help="what to compare it with")
    parser.add_argument("--top", type=int, default=20, help="tensors to show, the most different first; 20 by default")
    parser.add_argument("--json", action="store_true", help="print JSON, with all tensors")


def run(arguments: argparse.Namespace) -> int:
    """Compares and prints."""
    import json

    from rich.console import Console

    from data_pipeline.format.progress import bytes_progress
    from megaxf.checkpoint import resolve
    from megaxf.checkpoint.comparing import Pair, compare, show
    from megaxf.config_errors import ConfigError

    if arguments.top < 0:
        raise ConfigError("--top", [f"{arguments.top} should be 0 or more"])
    pair = Pair(resolve(arguments.a), resolve(arguments.b))
    with bytes_progress("comparing", pair.bytes_to_read(), quiet=arguments.json) as advance:
        found = compare(pair, advance)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        show(found, arguments.top, Console())
    return 0

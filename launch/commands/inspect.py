"""`megaxf inspect`: what is in this folder?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.checkpoint.finding import Listed

HELP = "show what a shard folder, a run folder or a checkpoint holds, and check that it is whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("path", metavar="PATH", help="a shard folder, a run folder or a checkpoint")
    parser.add_argument("--verify", action="store_true", help="read every file and compare it with its recorded hash")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Tells the kind of the folder and prints what it holds."""
    from data_pipeline.errors import DataError
    from data_pipeline.format.manifest import is_dataset
    from megaxf.checkpoint.finding import find_all

    if is_dataset(arguments.path):
        return _shards(arguments)
    if checkpoints := find_all(arguments.path):
        return _checkpoints(checkpoints, arguments)
    raise DataError("is neither a shard folder, nor a run folder with checkpoints, nor a checkpoint", arguments.path)


def _shards(arguments: argparse.Namespace) -> int:
    from launch.commands.data import inspect, verify

    return (verify if arguments.verify else inspect).run(arguments)


def _checkpoints(checkpoints: list[Listed], arguments: argparse.Namespace) -> int:
    import json

    from megaxf.checkpoint.report import sentences, summary

    found = [summary(listed, contents=arguments.verify) for listed in checkpoints]
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        state = "every checksum agrees" if arguments.verify else "sizes agree; --verify reads and checks every byte"
        faulty = any(one["fault"] for one in found)
        print("\n".join([*sentences(found), *([] if faulty else [state])]))
    return 2 if any(one["fault"] for one in found) else 0

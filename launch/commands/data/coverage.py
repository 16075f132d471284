"""`megaxf data coverage`: has a run read every sample once? Arguments only; the work is in data_pipeline.audit."""

from __future__ import annotations

import argparse

HELP = "show that a run has read every sample once, over all its restarts"

EPILOG = """\
A run records where it stands in its data at each start, checkpoint and end (positions.jsonl in the run folder). From
this follows, without looking at the data, that its starts read one sample after the other, whatever ranks they had,
that each source went on where it stood, and so that no row came twice in an epoch. What was lost in a crash and made
again is named, and so are skips that were declared. The exit code is 1 where samples are missing or came again, or
where the data was changed on the way.

examples:
  megaxf data coverage runs/mine
  megaxf data coverage runs/mine --json | jq .problems
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Adds up and says what came of it."""
    import json
    from pathlib import Path

    from rich.console import Console

    from data_pipeline.audit.coverage import as_json, cover
    from data_pipeline.audit.page import print_coverage
    from data_pipeline.audit.positions import POSITIONS, read_positions

    found = cover(read_positions(Path(arguments.run) / POSITIONS))
    if arguments.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print_coverage(found, Console())
    return 1 if found.problems else 0

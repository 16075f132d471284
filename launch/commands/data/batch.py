"""`megaxf data batch`: which documents were in a step? Arguments only; the work is in data_pipeline.audit."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "show which documents were in a step of a run, rank by rank and row by row"

EPILOG = """\
Each line is the part of one document that stands in one row: the data-parallel rank and its row, where in the row the
part begins, the source, the number of the document there, the file and line that it came from, which of its tokens the
row holds, and how their text begins. A row of N inputs holds N + 1 tokens, of which the last is a target only.

What a step read is computed from positions.jsonl in the run folder, so that it can be told of any step, made or yet to
come. Pieces of documents that fill-in-the-middle rearranges stand here as they were before.

examples:
  megaxf data batch runs/mine 1200
  megaxf data batch runs/mine 1200 --rank 3 --text          all of the text that rank 3 had
  megaxf data batch runs/mine 1200 --world-size 1 --json | jq -r '.passages[].origin' | sort -u
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("step", metavar="STEP", type=int, help="the step, as the log numbers them")
    parser.add_argument("--rank", type=int, metavar="R", help="only this data-parallel rank")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="share the rows among so many data-parallel ranks (default: as many as there were)",
    )
    parser.add_argument("--text", action="store_true", help="print the text, not only how it begins")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Finds the rows of the step and prints whose tokens they hold."""
    from pathlib import Path

    from rich.console import Console

    from data_pipeline.audit.batch import StepReader
    from data_pipeline.audit.lineage import trace
    from data_pipeline.audit.page import print_batch
    from data_pipeline.audit.positions import POSITIONS, read_positions
    from data_pipeline.errors import DataError
    from megaxf.config import load_run
    from megaxf.train.sources import cache_options

    if arguments.step < 1:
        raise DataError(f"STEP = {arguments.step} is not a step; the first one is 1")
    part = trace(read_positions(Path(arguments.run) / POSITIONS)).part_of(arguments.step)
    settings = load_run(Path(arguments.run) / "config.yaml")
    folders = {name: source.folder for name, source in settings.data.sources.items() if source.folder}
    reader = StepReader(part, folders, cache_options(settings))
    passages = reader.passages(arguments.step, arguments.world_size, arguments.rank)
    if arguments.json:
        return _print_json(reader, list(passages), arguments)
    if arguments.step > part.end.step:
        print(f"step {arguments.step} is not made yet, as far as the run has recorded; it would read")
    print_batch(reader, passages, arguments.text, Console())
    return 0


def _print_json(reader: Any, passages: list[Any], arguments: argparse.Namespace) -> int:
    import json

    from data_pipeline.audit.page import START_TOKENS

    tokens = None if arguments.text else START_TOKENS
    found = [one._asdict() | {"text": reader.text(one, tokens)} for one in passages]
    print(json.dumps({"step": arguments.step, "passages": found}, indent=1))
    return 0

"""`megaxf plan schedule`: how a pipeline's stages spend their time. Arguments only; the work is in megaxf.engine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "show when the stages of a pipeline compute and when they wait, as numbers and as a picture"

EPILOG = """\
The instructions are those that a run executes with parallel.pipeline_schedule = SCHEDULE, against a clock on which
messages take no time. Without SCHEDULE, all that can run so many micro-batches.

examples:
  megaxf plan schedule --stages 4 --micro-batches 8 -o schedules.png
  megaxf plan schedule 1f1b interleaved --stages 8 --micro-batches 32 --backward 3   full recomputation
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.stages import SCHEDULES

    parser.epilog = EPILOG
    parser.add_argument("schedules", nargs="*", metavar="SCHEDULE", help=f"of {', '.join(SCHEDULES)}")
    parser.add_argument("--stages", type=int, default=4, metavar="P", help="stages (default: %(default)s)")
    parser.add_argument("--micro-batches", type=int, default=8, metavar="M", help="in a step (default: %(default)s)")
    parser.add_argument("--forward", type=float, default=1.0, metavar="T", help="time in a stage (%(default)s)")
    parser.add_argument("--backward", type=float, default=2.0, metavar="T", help="the same (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="a picture of the timelines")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Simulates, prints, draws."""
    from megaxf.config_errors import ConfigError
    from megaxf.engine.timeline import simulate
    from megaxf.engine.timeline_report import draw, page, values
    from megaxf.plan.output import PICTURES, as_json, check_file, written
    from megaxf.plan.stages import SCHEDULES

    check_file(arguments.output, endings=PICTURES)
    if problems := _problems(arguments, SCHEDULES):
        raise ConfigError("command line", problems)
    timelines, faults = [], []
    costs = arguments.forward, arguments.backward
    for name in arguments.schedules or SCHEDULES:
        try:
            timelines.append(simulate(name, arguments.stages, arguments.micro_batches, *costs))
        except ValueError as error:
            faults.append(str(error))
    if faults and arguments.schedules:
        raise ConfigError("command line", faults)
    print("".join(f"note: left out: {fault}\n" for fault in faults), end="", file=sys.stderr)
    print(as_json([values(timeline) for timeline in timelines]) if arguments.json else page(timelines))
    if arguments.output:
        with written(arguments.output) as part:
            draw(timelines, part)
    return 0


def _problems(arguments: argparse.Namespace, known: tuple[str, ...]) -> list[str]:
    """What is wrong with the arguments."""
    wrong = [f"{name} is not a schedule; use one of {', '.join(known)}" for name in arguments.schedules]
    problems = [text for text, name in zip(wrong, arguments.schedules, strict=True) if name not in known]
    least = {"stages": 2, "micro_batches": 1}
    for name, number in least.items():
        if getattr(arguments, name) < number:
            flag = name.replace("_", "-")
            problems.append(f"--{flag} = {getattr(arguments, name)} is too few; use {number} or more")
    for name in ("forward", "backward"):
        if not 0 < getattr(arguments, name) < float("inf"):
            problems.append(f"--{name} = {getattr(arguments, name)} is not a time; use a positive number")
    return problems

"""`megaxf plan throughput`: how long a step of a run takes. Arguments only; the work is in megaxf.plan.throughput."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

HELP = "predict the time of a step, item by item, with tokens/s, MFU, days and dollars"

EPILOG = """\
SETTING is section.key=value with a value in YAML, applied after the file, as for megaxf pretrain.

examples:
  megaxf plan throughput run.yaml --gpu h100 --nodes 8
  megaxf plan throughput run.yaml --gpu a100 --world-size 16 train.compile=true -o step.png
  megaxf plan throughput run.yaml --gpu h100 --nodes 8 --timeline stages.png    the stages of its pipeline
  megaxf plan throughput run.yaml --profile profile.json                        as megaxf plan calibrate measured
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run_file", help="a YAML file, such as those in configs/runs")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value")
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument("--gpu", metavar="NAME", help="of megaxf plan hardware")
    machine.add_argument("--profile", type=Path, metavar="JSON", help="what megaxf plan calibrate wrote")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--world-size", type=int, metavar="N", help="ranks (default: one node)")
    size.add_argument("--nodes", type=int, metavar="N", help="full nodes")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a table of your own beside the shipped one")
    parser.add_argument("--price", type=float, metavar="DOLLARS", help="for an hour of a GPU (default: the table's)")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="a picture of the step's items")
    parser.add_argument("--timeline", type=Path, metavar="PNG", help="a picture of the pipeline's stages over time")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Predicts, prints, draws."""
    from megaxf.config import load_run
    from megaxf.plan.output import PICTURES, as_json, check_file, written
    from megaxf.plan.throughput.hardware import find, read_profile
    from megaxf.plan.throughput.layout import layout
    from megaxf.plan.throughput.page import draw, page, values
    from megaxf.plan.throughput.step import predict

    check_file(arguments.output, endings=PICTURES)
    check_file(arguments.timeline, "--timeline", PICTURES)
    machine = read_profile(arguments.profile) if arguments.profile else find(arguments.gpu, arguments.hardware)
    size = arguments.world_size if arguments.world_size is not None else (arguments.nodes or 1) * machine.node_size
    _check(arguments)
    settings = load_run(arguments.run_file, arguments.settings, size)
    step = predict(layout(settings, size), machine)
    price = arguments.price if arguments.price is not None else machine.dollars_per_hour
    told = step, settings.train.steps, price
    print(as_json(values(*told)) if arguments.json else page(*told))
    if arguments.output:
        with written(arguments.output) as part:
            draw(step, part)
    if arguments.timeline:
        with written(arguments.timeline) as part:
            _draw_stages(step, settings.parallel, part)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises PlanError for sizes and prices that are none."""
    from megaxf.plan.errors import PlanError

    if arguments.nodes is not None and arguments.nodes < 1:
        raise PlanError(f"--nodes = {arguments.nodes} is not a number of nodes; use 1 or more")
    if arguments.price is not None and not 0 < arguments.price < float("inf"):
        raise PlanError(f"--price = {arguments.price} is no price; use dollars for an hour of a GPU")


def _draw_stages(step: Any, parallel: Any, image: Path) -> None:
    """The schedule's instructions against the predicted times. Raises PlanError where there is no pipeline."""
    from megaxf.engine.timeline import simulate
    from megaxf.engine.timeline_report import draw
    from megaxf.plan.errors import PlanError

    stages, count = parallel.pipeline_parallel_size, int(step.layout.micro_batches)
    if stages == 1:
        raise PlanError("--timeline shows a pipeline's stages, but parallel.pipeline_parallel_size = 1; use -o")
    costs = float(step.forward), float(step.backward)
    draw([simulate(parallel.pipeline_schedule, stages, count, *costs)], image)

"""`megaxf plan scaling`: what more GPUs bring. Arguments only; the work is in megaxf.plan.search."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "draw tokens/s, days and dollars against the number of GPUs, with failures and the best checkpoint interval"

EPILOG = """\
Each number of GPUs has its own fastest layout of the same batch, as megaxf plan layout finds it. Days and dollars are
those of the whole run: its steps, its saves, and what failures throw back.

examples:
  megaxf plan scaling llama3-8b --gpu h100 --nodes 128 --sequence-length 8192 --batch 1024 --tokens 15T -o scaling.png
  megaxf plan scaling llama3-405b --gpu h100 --nodes 2048 --sequence-length 8192 --batch 2048 --tokens 15.6T --from 1024
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number
    from megaxf.plan.search.failures import GPU_HOURS_BETWEEN_FAILURES, RESTART_SECONDS, SAVE_SECONDS

    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="a name of configs/models, or a file")
    parser.add_argument("--gpu", required=True, metavar="NAME", help="of megaxf plan hardware")
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="full nodes, at the most")
    parser.add_argument("--from", type=int, dest="least", metavar="N", help="GPUs, at the least (default: one node)")
    parser.add_argument("--sequence-length", type=int, metavar="S", help="tokens (4096, or the model's longest)")
    parser.add_argument("--batch", type=int, required=True, metavar="B", help="sequences in a step, on all GPUs")
    parser.add_argument("--tokens", type=number, required=True, metavar="D", help="of the whole run")
    parser.add_argument("--price", type=float, metavar="DOLLARS", help="for an hour of a GPU (default: the table's)")
    parser.add_argument(
        "--gpu-hours-between-failures",
        type=number,
        default=GPU_HOURS_BETWEEN_FAILURES,
        metavar="H",
        help="of one GPU (%(default)s)",
    )
    parser.add_argument("--save-seconds", type=float, default=SAVE_SECONDS, metavar="S", help="(%(default)g)")
    parser.add_argument("--restart-seconds", type=float, default=RESTART_SECONDS, metavar="S", help="(%(default)g)")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a hardware table of your own")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="a picture of the curves")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Searches, prints, draws."""
    from megaxf.config import load_model
    from megaxf.plan.errors import PlanError
    from megaxf.plan.output import PICTURES, as_json, check_file, written
    from megaxf.plan.parameters import usual_length
    from megaxf.plan.search.failures import Failures
    from megaxf.plan.search.scaling import scale, sizes_up_to
    from megaxf.plan.search.scaling_page import draw, page, values
    from megaxf.plan.search.space import Task
    from megaxf.plan.throughput.hardware import find

    _check(arguments)
    check_file(arguments.output, endings=PICTURES)
    machine = find(arguments.gpu, arguments.hardware)
    most = arguments.nodes * machine.node_size
    model = load_model(arguments.model)
    length = usual_length(model) if arguments.sequence_length is None else arguments.sequence_length
    task = Task(model, length, arguments.batch, machine, most, machine.memory)
    failures = Failures(arguments.gpu_hours_between_failures, arguments.save_seconds, arguments.restart_seconds)
    sizes = [size for size in sizes_up_to(most, machine.node_size) if size >= (arguments.least or 1)]
    if not sizes:
        raise PlanError(f"--from = {arguments.least} is more than the {most} GPUs of --nodes = {arguments.nodes}")
    points = scale(task, sizes, failures)
    price = machine.dollars_per_hour if arguments.price is None else arguments.price
    told = arguments.tokens, price
    print(as_json(values(points, *told)) if arguments.json else page(points, task, *told))
    if arguments.output:
        with written(arguments.output) as part:
            draw(points, *told, part)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises PlanError for numbers that are none."""
    from megaxf.plan.errors import PlanError

    numbers = ("nodes", "least", "tokens", "price", "gpu_hours_between_failures", "save_seconds", "restart_seconds")
    for name in numbers:
        value, option = getattr(arguments, name), "from" if name == "least" else name.replace("_", "-")
        if value is not None and not 0 < value < float("inf"):
            raise PlanError(f"--{option} = {value:g} is not a number above 0")

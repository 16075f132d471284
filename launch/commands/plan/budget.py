"""`megaxf plan budget`, or `megaxf plan --budget ...`: one page from a budget to a run. The work is in megaxf.plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.plan.budget.plan import Plan
    from megaxf.plan.budget.request import Means

HELP = "from a budget to a run: what to train, on how much, in which layout, how long, for how much"

EPILOG = """\
Without a verb, `megaxf plan --OPTION ...` is this one. Give limits, or a part of the training, or both:
  limits    --budget, --gpu-hours, --days: the tightest counts, and the law divides it into parameters and tokens
  training  one or two of --flops, --params, --tokens: the law says the rest; with limits, whether it is within them
Numbers are written 7b, 1.5T, $2M or 5.76e23.

examples:
  megaxf plan --budget '$2M' --gpu h100 --nodes 64 -o run.yaml
  megaxf plan --gpu-hours 128 --gpu h100 --nodes 8                       a slot of two hours on 64 GPUs
  megaxf plan --days 30 --gpu h200 --nodes 16 --inference-tokens 10T     a model that will serve much
  megaxf plan --budget '$200k' --gpu a100 --nodes 16 --unique-tokens 300b
  megaxf plan --params 7b --tokens 2T --gpu h100 --nodes 32              how long, for how much?
  megaxf pretrain run.yaml --check --world-size 512                      what the run file says
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import dollars, number

    parser.epilog = EPILOG
    parser.add_argument("--budget", type=dollars, metavar="$", help="dollars, such as '$2M' or 150k")
    parser.add_argument("--gpu-hours", type=number, metavar="H", help="of all GPUs together")
    parser.add_argument("--days", type=number, metavar="D", help="that the GPUs are there")
    parser.add_argument("--flops", type=number, metavar="C", help="training compute, 6 N D")
    parser.add_argument("--params", type=number, metavar="N", help="parameters, as the law counts them")
    parser.add_argument("--tokens", type=number, metavar="D", help="to train on")
    parser.add_argument("--inference-tokens", type=number, metavar="T", help="that the model will serve")
    parser.add_argument("--unique-tokens", type=number, metavar="U", help="that there are without repeats")
    parser.add_argument("--gpu", required=True, metavar="NAME", help="of megaxf plan hardware")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nodes", type=int, metavar="N", help="full nodes (default: one)")
    size.add_argument("--world-size", type=int, metavar="N", help="GPUs")
    parser.add_argument("--price", type=float, metavar="DOLLARS", help="for an hour of a GPU (default: the table's)")
    parser.add_argument("--law", default="epoch", metavar="NAME", help="of megaxf plan laws, or a law.json")
    parser.add_argument("--sequence-length", type=int, default=4096, metavar="S", help="tokens (%(default)s)")
    parser.add_argument("--batch", type=int, metavar="B", help="sequences of a step (default: what laws suggest)")
    parser.add_argument("--vocab-size", type=int, metavar="V", help="of the tokenizer (default: by size)")
    parser.add_argument("--compile", action="store_true", help="with train.compile = true")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a hardware table of your own")
    parser.add_argument("-o", "--output", type=Path, metavar="YAML", help="write the run file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Plans, prints, writes."""
    from megaxf.plan.budget.page import page, values
    from megaxf.plan.budget.plan import plan
    from megaxf.plan.budget.request import Request
    from megaxf.plan.output import as_json, check_file

    check_file(arguments.output, read=[arguments.law, arguments.hardware])
    options = vars(arguments) | {"parameters": arguments.params, "dollars": arguments.budget}
    found = plan(Request(**{name: options[name] for name in Request._fields}), _means(arguments))
    print(as_json(values(found)) if arguments.json else page(found))
    if arguments.output:
        _write(found, arguments.output)
    return 0


def _means(arguments: argparse.Namespace) -> Means:
    from megaxf.plan.budget.request import Means
    from megaxf.plan.errors import PlanError
    from megaxf.plan.laws.files import find as find_law
    from megaxf.plan.throughput.hardware import find

    machine = find(arguments.gpu, arguments.hardware)
    nodes = 1 if arguments.nodes is None else arguments.nodes
    size = nodes * machine.node_size if arguments.world_size is None else arguments.world_size
    price = machine.dollars_per_hour if arguments.price is None else arguments.price
    if size < 1:
        raise PlanError(f"{size} GPUs are none; use 1 or more with --nodes or --world-size")
    if price is not None and not 0 < price < float("inf"):
        raise PlanError(f"--price = {price:g} is no price; use dollars for an hour of a GPU")
    return Means(machine, size, price, find_law(arguments.law))


def _write(found: Plan, path: Path) -> None:
    """The run file."""
    from megaxf.config import to_yaml, validate
    from megaxf.plan.output import written
    from megaxf.plan.search.runfile import run_settings
    from megaxf.plan.shape.page import settings

    task, seconds = found.found.task, float(found.first.step.seconds)
    every = max(1, round(found.means.failures.interval(task.world_size) / seconds))
    model = settings(found.sizes, task.sequence_length)
    planned = run_settings(task, found.first.candidate, model, found.training, every)
    text = to_yaml(validate(planned, str(path), None, task.world_size))
    with written(path) as part:
        part.write_text(text, encoding="utf-8")
    print(f"written: {path}; megaxf pretrain {path} --check --world-size {task.world_size}", file=sys.stderr)

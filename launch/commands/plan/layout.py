"""`megaxf plan layout`: how to cut a model over a cluster. Arguments only; the work is in megaxf.plan.search."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaxf.plan.search.find import Choice, Found
    from megaxf.plan.search.space import Task

HELP = "find the fastest layouts that fit a cluster: tensor, context, pipeline, ZeRO, micro-batch, recomputation"

EPILOG = """\
MODEL is a name of configs/models or a model file, as megaxf plan shape writes it. Every layout that a run file may
have is predicted; the ledger of megaxf plan memory decides what fits. Not searched: offloading, recomputation in some
layers only.

examples:
  megaxf plan layout llama3-8b --gpu h100 --nodes 8 --sequence-length 8192 --batch 512
  megaxf plan layout llama3-405b --gpu h100 --nodes 2048 --sequence-length 8192 --batch 2048 -o run.yaml
  megaxf plan layout llama3-8b --gpu h100 --nodes 8 --sequence-length 8192 --batch 512 --beside mine.yaml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="a name of configs/models, or a file")
    parser.add_argument("--gpu", required=True, metavar="NAME", help="of megaxf plan hardware")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--world-size", type=int, metavar="N", help="GPUs (default: one node)")
    size.add_argument("--nodes", type=int, metavar="N", help="full nodes")
    parser.add_argument("--sequence-length", type=int, metavar="S", help="tokens (4096, or the model's longest)")
    parser.add_argument("--batch", type=int, required=True, metavar="B", help="sequences in a step, on all GPUs")
    parser.add_argument("--memory", type=float, metavar="GIB", help="that a rank may need (default: the GPU's)")
    parser.add_argument("--compile", action="store_true", help="with train.compile = true")
    parser.add_argument("--many", type=int, default=10, metavar="K", help="how many layouts to show (%(default)s)")
    parser.add_argument("--beside", metavar="RUN", help="a run file: how does its layout compare, and why?")
    parser.add_argument("--tokens", type=number, metavar="D", help="of the run file (default: a law's for this size)")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a hardware table of your own")
    parser.add_argument("-o", "--output", type=Path, metavar="YAML", help="write a run with the first layout")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Searches, prints, writes."""
    from megaxf.config import load_model
    from megaxf.plan.errors import PlanError
    from megaxf.plan.output import as_json, check_file
    from megaxf.plan.search.find import rank, search
    from megaxf.plan.search.page import page, values

    if arguments.many < 1:
        raise PlanError(f"--many = {arguments.many} is too small; use 1 or more")
    if arguments.tokens is not None and not 0 < arguments.tokens < float("inf"):
        raise PlanError(f"--tokens = {arguments.tokens:g} is not a number above 0")
    if arguments.tokens is not None and arguments.output is None:
        raise PlanError("--tokens is that of the run file, and has no effect without -o")
    check_file(arguments.output, read=[arguments.model, arguments.beside, arguments.hardware])
    model = load_model(arguments.model)
    task = _task(model, arguments)
    beside = _beside(task, arguments)
    found = search(task, arguments.many)
    told = found, beside, beside and rank(task, beside.candidate)
    print(as_json(values(*told)) if arguments.json else page(*told))
    if arguments.output:
        _write(found, model, arguments)
    return 0


def _task(model: Any, arguments: argparse.Namespace) -> Task:
    from megaxf.plan.memory.page import GIB
    from megaxf.plan.parameters import usual_length
    from megaxf.plan.search.space import Task
    from megaxf.plan.throughput.hardware import find

    machine = find(arguments.gpu, arguments.hardware)
    nodes = 1 if arguments.nodes is None else arguments.nodes
    size = nodes * machine.node_size if arguments.world_size is None else arguments.world_size
    memory = machine.memory if arguments.memory is None else arguments.memory * GIB
    length = usual_length(model) if arguments.sequence_length is None else arguments.sequence_length
    return Task(model, length, arguments.batch, machine, size, memory, arguments.compile)


def _beside(task: Task, arguments: argparse.Namespace) -> Choice | None:
    """The layout of a run file. Raises ConfigError where it is none for this cluster and batch, PlanError where it is
    that of another model; what the comparison leaves out is told on the error stream."""
    if arguments.beside is None:
        return None
    from megaxf.config import load_run
    from megaxf.plan.search.find import choice
    from megaxf.plan.search.space import Candidate, check_model, ignored

    batch, length = task.global_batch_size, task.sequence_length
    same = [f"train.global_batch_size={batch}", f"data.sequence_length={length}"]
    run = load_run(arguments.beside, same, task.world_size)
    check_model(task, run.model)
    sections = vars(run.parallel) | vars(run.train) | vars(run.engine)
    candidate = Candidate(**{name: sections[name] for name in Candidate._fields})
    if left_out := ignored(task, candidate, run):
        print(f"note: {arguments.beside} is compared without its {', '.join(left_out)}", file=sys.stderr)
    return choice(task, candidate)


def _write(found: Found, model: Any, arguments: argparse.Namespace) -> None:
    """The run file of the first layout."""
    from megaxf.config import to_yaml, validate
    from megaxf.plan.laws.optimum import allocation, for_parameters
    from megaxf.plan.laws.table import DEFAULT, surface
    from megaxf.plan.output import written
    from megaxf.plan.parameters import count
    from megaxf.plan.search.runfile import run_settings

    law, size = surface(DEFAULT), count(model).total
    tokens = for_parameters(law, size).tokens if arguments.tokens is None else arguments.tokens
    chosen, training = found.best[0], allocation(law, size, tokens)
    hour = max(1, round(3600 / float(chosen.step.seconds)))
    settings = run_settings(found.task, chosen.candidate, model.model_dump(mode="json"), training, hour)
    resolved = validate(settings, str(arguments.output), None, found.task.world_size)
    with written(arguments.output) as part:
        part.write_text(to_yaml(resolved), encoding="utf-8")
    print(f"written: {arguments.output}, with {training.tokens:.3g} tokens", file=sys.stderr)

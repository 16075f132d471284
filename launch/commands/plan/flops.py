"""`megaxf plan flops`: the arithmetic of a training. Arguments only; the work is in megaxf.plan.flops_report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.plan.flops_report import Work

HELP = "count the FLOPs of a training: model, hardware and convention, where they go, how long they take"

EPILOG = """\
Give a run file, or a model with --sequence-length. Numbers are written 15T or 3e23.

Model FLOPs are what the mathematics needs: matrices that a token meets (no look-up of the embedding) and the scores
that the causal mask leaves. Hardware FLOPs add what is computed again. The convention, 6N + 12LHQS, is what most
published MFU figures use. MFU = model FLOPs / (time x peak of dense products).

examples:
  megaxf plan flops run.yaml
  megaxf plan flops --model llama3-8b --sequence-length 8192
  megaxf plan flops --model llama3-8b --sequence-length 8192 --tokens 15T --gpu h100 --gpus 1024 --mfu 0.4
  megaxf plan flops run.yaml train.recompute=full --gpu h100 --speed 5762     what MFU is that?
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("run_file", nargs="?", metavar="RUN", help="a YAML file, such as those in configs/runs")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value, changes RUN")
    parser.add_argument("--model", metavar="NAME", help="a model of configs/models or a file, in place of RUN")
    parser.add_argument("--sequence-length", type=int, metavar="S", help="with --model: tokens of a sequence")
    parser.add_argument("--tokens", type=number, metavar="D", help="of the training (default: those of RUN)")
    parser.add_argument("--gpu", metavar="NAME", help="a GPU of configs/hardware.yaml, such as h100")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a hardware table of your own")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many (default: 1)")
    parser.add_argument("--mfu", type=float, metavar="SHARE", help="expected share of the peak, such as 0.4")
    parser.add_argument("--speed", type=number, metavar="T", help="measured tokens/s of one GPU, in place of --mfu")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Counts and prints."""
    from megaxf.config_errors import ConfigError
    from megaxf.plan.flops_report import Machine, page, values
    from megaxf.plan.output import as_json
    from megaxf.plan.throughput.hardware import find

    if problems := _problems(arguments):
        raise ConfigError("command line", problems)
    work, precision = _work(arguments)
    if arguments.tokens is not None:
        work = work._replace(tokens=arguments.tokens)
    machine = None
    if arguments.gpu:
        peak = find(arguments.gpu, arguments.hardware).peak(precision)
        gpus = 1 if arguments.gpus is None else arguments.gpus
        machine = Machine(arguments.gpu, peak, gpus, arguments.mfu, arguments.speed)
    found = values(work, machine)
    print(as_json(found) if arguments.json else page(found))
    return 0


def _work(arguments: argparse.Namespace) -> tuple[Work, str]:
    """(what is asked about, the precision of its matrix products)."""
    from megaxf.config import load_model, load_run
    from megaxf.plan.flops_report import Work, work_of

    if arguments.model:
        return Work(load_model(arguments.model), arguments.sequence_length), "bf16"
    settings = load_run(arguments.run_file, arguments.settings)
    return work_of(settings), settings.train.precision


def _problems(arguments: argparse.Namespace) -> list[str]:
    """What is wrong with the arguments."""
    problems = []
    if bool(arguments.run_file) == bool(arguments.model):
        problems.append("give a run file or --model, and not both")
    if arguments.model and not arguments.sequence_length:
        problems.append("--model needs --sequence-length, since attention grows with it; try --sequence-length 8192")
    if arguments.sequence_length and not arguments.model:
        problems.append("--sequence-length goes with --model; of a run write data.sequence_length=... behind the file")
    options = {name: getattr(arguments, name) is not None for name in ("mfu", "speed", "gpus", "hardware")}
    if not arguments.gpu and (idle := [f"--{name}" for name, given in options.items() if given]):
        problems.append(f"{', '.join(idle)} say something about a GPU: name the GPU with --gpu, such as --gpu h100")
    if options["mfu"] and options["speed"]:
        problems.append("--mfu and --speed say the same in two ways; give one")
    return problems

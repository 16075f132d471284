"""`megaxf plan memory`: what a rank of a run holds. Arguments only; the work is in megaxf.plan.memory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaxf.config import Run
    from megaxf.plan.memory.ledger import Ledger
    from megaxf.plan.throughput.hardware import Hardware

HELP = "list what a rank of a run holds in memory, item by item; why it does not fit, and what would help"

EPILOG = """\
SETTING is section.key=value with a value in YAML, applied after the file, as for megaxf pretrain.

With --memory or --gpu, a run that does not fit is told why, and the three cheapest ways to make it fit: recomputation,
smaller micro-batches, ZeRO, tensor, context and pipeline parallelism, offloading, alone or up to three at once.

examples:
  megaxf plan memory run.yaml --world-size 64
  megaxf plan memory run.yaml --world-size 64 --gpu h100
  megaxf plan memory run.yaml --world-size 64 train.recompute=selective --memory 80 -o memory.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run_file", help="a YAML file, such as those in configs/runs")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="ranks (default: %(default)s)")
    parser.add_argument("--memory", type=float, metavar="GIB", help="what a device has: does it fit?")
    parser.add_argument("--gpu", metavar="NAME", help="whose memory it is, and whose speed (default: that of h100)")
    parser.add_argument("--hardware", type=Path, metavar="FILE", help="a hardware table of your own")
    parser.add_argument("--cpu", action="store_true", help="ranks on CPUs, whose loss works in smaller chunks")
    parser.add_argument("-o", "--output", type=Path, metavar="PNG", help="a picture: a bar a pipeline stage")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Counts, prints, draws."""
    from megaxf.config import load_run
    from megaxf.plan.memory import advice_page
    from megaxf.plan.memory.advice import fullest
    from megaxf.plan.memory.ledger import ledgers
    from megaxf.plan.memory.page import draw, page, values
    from megaxf.plan.output import PICTURES, as_json, check_file, written

    check_file(arguments.output, endings=PICTURES)
    limit, hardware = _limit(arguments)
    settings = load_run(arguments.run_file, arguments.settings, arguments.world_size)
    found = ledgers(settings, arguments.world_size, "cpu" if arguments.cpu else "cuda")
    advice = None if limit is None else _advice(settings, found, limit, hardware, arguments)
    if arguments.json:
        print(as_json({"stages": [values(ledger) for ledger in found], "advice": advice}))
    else:
        print(page(found, limit))
        if advice and not advice["fits"]:
            most = fullest(found)
            print("\n" + advice_page.page(advice, hardware.name, most.stage, most.moment))
    if arguments.output:
        with written(arguments.output) as part:
            draw(found, part, limit)
    return 0


def _limit(arguments: argparse.Namespace) -> tuple[float | None, Hardware]:
    """(bytes of a device, where they are asked about; the hardware whose speed counts)."""
    from megaxf.config_errors import ConfigError
    from megaxf.plan.memory.page import GIB
    from megaxf.plan.throughput.hardware import find

    if arguments.memory is not None and not 0 < arguments.memory < float("inf"):
        raise ConfigError("command line", [f"--memory = {arguments.memory} is no size; use a positive number of GiB"])
    hardware = find(arguments.gpu or "h100", arguments.hardware)
    if arguments.memory is not None:
        return arguments.memory * GIB, hardware
    return hardware.memory if arguments.gpu else None, hardware


def _advice(
    settings: Run[Any], found: list[Ledger], limit: float, hardware: Hardware, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Why the run does not fit and what would help, as values."""
    from megaxf.config import change
    from megaxf.plan.memory.advice import need, ways
    from megaxf.plan.memory.advice_page import values
    from megaxf.plan.memory.price import step_seconds

    ranks, device = arguments.world_size, "cpu" if arguments.cpu else "cuda"

    def seconds(run: Any) -> float:
        return step_seconds(run, ranks, hardware)

    helping = []
    if need(found) > limit:
        helping = ways(settings, ranks, limit, lambda more: change(settings, more, ranks), seconds, device)
    return values(found, helping, limit, seconds(settings))

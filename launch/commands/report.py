"""`megaxf report`: one page about a run. Arguments only; the work is in megaxf.train.report."""

from __future__ import annotations

import argparse
import json
from math import inf
from pathlib import Path

HELP = "one page about a run: curves, pace, restarts, findings, data, cost so far and to come"

EPILOG = """\
Reads the run folder only, so it works while the run goes on, and anywhere the folder was copied to. The page is one
HTML file with the picture in it; with a name that ends in .png only the picture is written.

examples:
  megaxf report runs/mine
  megaxf report runs/mine -o today.html --gpu h100          with the cost, by the hardware table's price
  megaxf report runs/mine -o curves.png --dollars-per-hour 2.2
  megaxf report runs/mine --json | jq .summary.seconds_left
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="an .html or .png file (default: report.html in the folder)"
    )
    price = parser.add_mutually_exclusive_group()
    price.add_argument("--gpu", metavar="NAME", help="of megaxf plan hardware: its price")
    price.add_argument("--dollars-per-hour", type=float, metavar="D", help="of one device")
    parser.add_argument("--json", action="store_true", help="print JSON and write nothing")


def run(arguments: argparse.Namespace) -> int:
    """Reads, draws, writes, and says where."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from megaxf.config_errors import ConfigError
    from megaxf.plan.throughput.hardware import find
    from megaxf.train.report.charts import picture
    from megaxf.train.report.facts import read
    from megaxf.train.report.page import lines, page

    output = arguments.output or arguments.run / "report.html"
    if output.suffix not in (".html", ".png"):
        raise ConfigError("--output", [f"{output} is neither .html nor .png; name a file that ends so"])
    if arguments.output and (output.is_dir() or not output.parent.is_dir()):
        why = "is a folder" if output.is_dir() else f"cannot be written: there is no folder {output.parent}"
        raise ConfigError("--output", [f"{output} {why}; name a file in a folder that is there"])
    dollars = arguments.dollars_per_hour
    if dollars is not None and not 0 < dollars < inf:
        raise ConfigError("--dollars-per-hour", [f"{dollars} is no price; use a number above 0"])
    price = find(arguments.gpu).dollars_per_hour if arguments.gpu else dollars
    facts = read(arguments.run, price)
    if arguments.json:
        print(json.dumps(facts.as_json(), indent=1))
        return 0
    image = picture(facts)
    if output.suffix == ".png":
        output.write_bytes(image)
    else:
        output.write_text(page(facts, image), encoding="utf-8")
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, text in lines(facts):
        table.add_row(Text(name, style="dim"), Text(text))
    console.print(table)
    console.print(f"page: {output}")
    return 0

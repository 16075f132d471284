"""`megaxf plan fit`: the law that runs follow. Arguments only; the work is in megaxf.plan.fit."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.plan.fit.report import Report

HELP = "fit a scaling law to runs, with bootstrap intervals, cross-checks and pictures"

EPILOG = """\
RUNS is a CSV file or a folder with runs of megaxf at any depth (of which all parameters are counted).
Columns of a CSV file: params, loss, and tokens or flops (6 N D); and, where they are,
  run       rows of one run, its losses on the way: with them approach 1 can be fitted, too
  outlier   1 leaves the row out

written to the output folder: law.json for --law of megaxf plan laws, fit.json with everything, PNG pictures

examples:
  megaxf plan fit runs.csv -o fit
  megaxf plan fit ladder -o fit --flops 1e20 5e21
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.parameters import COUNTS
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path, help="CSV files and folders")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where law.json, fit.json and pictures go")
    parser.add_argument(
        "--flops",
        nargs="+",
        type=number,
        default=(),
        metavar="C",
        help="budgets to predict for (1 to 1,000 x the largest)",
    )
    parser.add_argument("--bootstraps", type=int, default=1000, metavar="B", help="resamples (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="of the resamples (default: %(default)s)")
    parser.add_argument("--counts", default="total", choices=COUNTS, help="what params counts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Fits, prints, writes."""
    from megaxf.plan.fit.page import page
    from megaxf.plan.fit.report import fit, values
    from megaxf.plan.output import as_json, check_folder

    check_folder(arguments.output)
    curves, left_out, unfinished = _read(arguments.runs)
    options = {name: getattr(arguments, name) for name in ("bootstraps", "seed", "flops", "counts")}
    report = fit(curves, left_out, **options)
    found = values(report) | {"unfinished": unfinished}
    text = as_json(found)
    if unfinished:
        print(f"note: left out, since not trained to the end: {', '.join(unfinished)}", file=sys.stderr)
    print(text if arguments.json else page(found))
    if arguments.output:
        _write(report, text, arguments.output)
    return 0


def _write(report: Report, text: str, folder: Path) -> None:
    """The law, all numbers and the pictures."""
    from megaxf.plan.fit.plots import draw
    from megaxf.plan.laws.files import write_law
    from megaxf.plan.output import said, written

    law, numbers = folder / "law.json", folder / "fit.json"
    with said(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pictures = draw(report, folder)
    write_law(law, report.law("fit"))
    with written(numbers) as part:
        part.write_text(text + "\n", encoding="utf-8")
    print(f"written: {', '.join(str(path) for path in (law, numbers, *pictures))}", file=sys.stderr)


def _read(paths: list[Path]) -> tuple[list, int, list[str]]:
    """(curves, rows left out, runs left out) of files and folders."""
    curves, left_out, unfinished = [], 0, []
    for path in paths:
        if path.is_dir():
            from megaxf.train.curves import read_folder

            found, names = read_folder(path)
            unfinished += names
        else:
            from megaxf.plan.fit.runs import read_csv

            found, count = read_csv(path)
            left_out += count
        curves += found
    return curves, left_out, unfinished

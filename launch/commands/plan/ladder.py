"""`megaxf plan ladder`: small runs to fit a law from. Arguments only; the work is in megaxf.plan.ladder."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

HELP = "write the run files of a ladder of small runs, to fit a law from"

EPILOG = """\
RUN is a run file whose batch, learning rate and schedule are good at its size; the ladder's are scaled from it.
At each of the budgets, a factor of 3.2 apart, sizes from a quarter to four times the expected optimum are trained.

written to the output folder: a run file each, and runs.txt, which names them for an array job

examples:
  megaxf plan ladder run.yaml --flops 1e19 -o ladder
  megaxf plan ladder run.yaml --flops 1e15 --budgets 3 --sizes 5 -o ladder train.precision=fp32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("run_file", metavar="RUN", help="the run to scale from")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value, changes RUN")
    parser.add_argument("--flops", type=number, required=True, metavar="C", help="of a run of the largest budget")
    parser.add_argument("--budgets", type=int, default=4, metavar="K", help="number of budgets (%(default)s)")
    parser.add_argument("--sizes", type=int, default=6, metavar="K", help="models at each budget (%(default)s)")
    parser.add_argument("--law", default="epoch", metavar="NAME", help="where the optimum is expected (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where the run files go")


def run(arguments: argparse.Namespace) -> int:
    """Writes the run files."""
    from megaxf.config import load_run, to_yaml, validate
    from megaxf.models.registry import config_type
    from megaxf.plan.ladder import hint, ladder, page
    from megaxf.plan.laws.files import find
    from megaxf.plan.output import check_folder, said, written

    check_folder(arguments.output)
    base = load_run(arguments.run_file, arguments.settings).model_dump(mode="json")
    build, form, folder = (
        config_type(base["model"]["family"]).model_validate,
        find(arguments.law).form,
        arguments.output,
    )
    rungs = list(ladder(base, build, form, arguments.flops, arguments.budgets, arguments.sizes, str(folder / "runs")))
    texts = {rung.name: to_yaml(validate(rung.settings, rung.name)) for rung in rungs}
    files = {folder / f"{name}.yaml": text for name, text in texts.items()}
    listing = folder / "runs.txt"
    with said(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for file, text in (files | {listing: "".join(f"{file}\n" for file in files)}).items():
        with written(file) as part:
            part.write_text(text, encoding="utf-8")
    print(page(rungs))
    print(f"\n{hint(shlex.quote(str(listing)), shlex.quote(str(folder)))}")
    return 0

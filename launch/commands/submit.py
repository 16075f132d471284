"""`megaxf submit`: a run as a Slurm job. Checks it, fills in a template of slurm/, prints the script, submits it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaxf.config import Run

HELP = "submit a run, or a list of runs, as a Slurm job that goes on after its time limit"

EPILOG = """\
The run is checked first, as by `megaxf pretrain --check` on as many ranks. The script is printed, then given to sbatch.
Ahead of the time limit the run is asked to save and stop (exit code 75), and the job goes back into the queue, until
the run is done. The log is slurm-JOB.out in the run folder; what your site needs stands in slurm/environment.sh.

examples:
  megaxf submit run.yaml --nodes 8 --time 48:00:00 --partition gpu --dry-run
  megaxf submit run.yaml train.steps=20000 --nodes 8 --time 48:00:00 --account physics
  megaxf submit run.yaml --nodes 8 --time 12:00:00 --chain 6         where jobs may not be queued again
  megaxf submit ladder/runs.txt --template sweep --at-once 8 --time 4:00:00 --gpus-per-node 1
"""

_SBATCH = ("partition", "account", "qos", "constraint")
_LEAST = {
    "nodes": 1,
    "gpus-per-node": 0,
    "ranks-per-node": 1,
    "at-once": 1,
    "stop-seconds": 1,
    "chain": 0,
    "restarts": 0,
}
_RANGE = r"[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?"
_ARRAY = re.compile(rf"{_RANGE}(,{_RANGE})*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and what the job needs."""
    from launch.batch import templates

    parser.epilog = EPILOG
    parser.add_argument("run_file", metavar="RUN", help="a run file; with --template sweep a list of them, one a line")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of a run (default 1)")
    parser.add_argument("--time", required=True, metavar="LIMIT", help="of one job: 48:00:00, 2-00:00:00, or minutes")
    parser.add_argument("--gpus-per-node", type=int, default=8, metavar="N", help="0: on the CPU (default 8)")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="default: one a GPU, one on the CPU")
    parser.add_argument("--template", choices=templates(), default="pretrain", help="of slurm/ (default pretrain)")
    parser.add_argument("--at-once", type=int, metavar="N", help="runs of a sweep that go at the same time")
    parser.add_argument("--array", metavar="LIST", help="tasks of a sweep, such as 0-5,9 (default: all lines)")
    parser.add_argument("--job-name", metavar="NAME", help="default: that of the run folder, or of the list's")
    for name in _SBATCH:
        parser.add_argument(f"--{name}", metavar="NAME", help="as sbatch knows it")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="any other: --sbatch=--mem=64G")
    parser.add_argument("--stop-seconds", type=int, default=300, metavar="S", help="for saving before LIMIT (300)")
    parser.add_argument("--chain", type=int, default=0, metavar="N", help="N jobs in a row, none is queued again")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="of a job whose ranks broke down (3)")
    parser.add_argument("--environment", type=Path, metavar="FILE", help="in the place of slurm/environment.sh")
    parser.add_argument("--dry-run", action="store_true", help="print the script, submit nothing")
    parser.add_argument("--json", action="store_true", help="print script, jobs and log as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check, fill in, print, submit."""
    from launch import batch

    _check_arguments(arguments)
    sweep = arguments.template == "sweep"
    files = _listed(arguments.run_file) if sweep else [arguments.run_file]
    runs = [_checked(file, arguments) for file in files]
    folder = Path(arguments.run_file).parent if sweep else Path(runs[0].run_folder)
    log = str(folder / ("slurm-%A_%a.out" if sweep else "slurm-%j.out"))
    options = _options(arguments, folder, len(files))
    script = batch.fill(arguments.template, options, _settings(arguments), [arguments.run_file, *arguments.settings])
    jobs: list[str] = []
    if not arguments.json:
        print(script)
    if not arguments.dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(max(1, arguments.chain)):
            after = [f"--dependency=afternotok:{jobs[-1]}", "--kill-on-invalid-dep=yes"] if jobs else []
            jobs.append(batch.submit(script, *after))
    if arguments.json:
        print(json.dumps({"jobs": jobs, "log": log, "script": script}, indent=1))
    elif jobs:
        print(f"submitted: job {', '.join(jobs)}; log: {log}")
    return 0


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for what cannot be, or has no effect."""
    from launch.batch import seconds
    from megaxf.config_errors import ConfigError

    limit, problems = seconds(arguments.time), []
    sweep = arguments.template == "sweep"
    if arguments.stop_seconds >= limit:
        problems.append(
            f"--stop-seconds {arguments.stop_seconds} is not less than --time {arguments.time}, {limit} s: the run "
            "would be stopped as it starts"
        )
    for name, least in _LEAST.items():
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None and value < least:
            problems.append(f"--{name} {value} should be {least} or more")
    if not sweep and (arguments.at_once is not None or arguments.array is not None):
        problems.append("--at-once and --array have an effect with --template sweep only")
    if arguments.array is not None and not _ARRAY.fullmatch(arguments.array):
        problems.append(
            f"--array {arguments.array!r} is no list of tasks; write it as 0-5,9 or 0-8:2 (and --at-once N)"
        )
    if arguments.environment and not arguments.environment.is_file():
        problems.append(f"--environment {arguments.environment} is no file")
    if problems:
        raise ConfigError("command line", problems)


def _checked(file: str, arguments: argparse.Namespace) -> Run[Any]:
    """The run, which could start on so many ranks. Raises ConfigError with its problems."""
    from megaxf.config_errors import ConfigError
    from megaxf.train.judge import judge

    found, resolved = judge(file, arguments.settings, arguments.nodes * _ranks(arguments))
    if resolved["problems"]:
        raise ConfigError(file, resolved["problems"])
    for warning in resolved["warnings"]:
        print(f"{file}: {warning}", file=sys.stderr)
    return found


def _listed(path: str) -> list[str]:
    """The run files of a list, all of them, since a task takes the line of its number."""
    from megaxf.config_errors import ConfigError

    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, [f"cannot be read as a list of run files: {error}"]) from None
    if not lines or not all(lines):
        raise ConfigError(path, ["should name a run file on every line"])
    return lines


def _options(arguments: argparse.Namespace, folder: Path, runs: int) -> dict[str, str | None]:
    """What sbatch is told, beside what the template says."""
    sweep, per_gpu = arguments.template == "sweep", arguments.template == "pretrain-per-gpu"
    gpus = arguments.gpus_per_node
    log = str(folder.absolute()).replace("%", "%%") + ("/slurm-%A_%a.out" if sweep else "/slurm-%j.out")
    options: dict[str, str | None] = {
        "job-name": arguments.job_name or folder.absolute().name,
        "nodes": str(arguments.nodes),
        "ntasks-per-node": str(_ranks(arguments) if per_gpu else 1),
        "gpus-per-node": str(gpus) if gpus else None,
        "time": arguments.time,
        "signal": f"B:USR1@{arguments.stop_seconds}",
        "output": log,
        **{name: getattr(arguments, name) for name in _SBATCH if getattr(arguments, name)},
    }
    if sweep:
        options["array"] = _array(arguments, runs) + (f"%{arguments.at_once}" if arguments.at_once else "")
    if arguments.chain:
        options |= {"requeue": None, "no-requeue": ""}
    for option in arguments.sbatch:
        name, _, value = option.lstrip("-").partition("=")
        options[name] = value
    return options


def _array(arguments: argparse.Namespace, runs: int) -> str:
    """The tasks of a sweep. Raises ConfigError where one has no run."""
    from megaxf.config_errors import ConfigError

    if arguments.array is None:
        return f"0-{runs - 1}"
    last = max(int(number) for part in arguments.array.split(",") for number in part.partition(":")[0].split("-"))
    if last >= runs:
        raise ConfigError(
            "command line",
            [f"--array {arguments.array} names task {last}, and {arguments.run_file} has {runs} lines, counted from 0"],
        )
    return str(arguments.array)


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The variables of the script."""
    from launch.batch import TEMPLATES

    environment = arguments.environment or TEMPLATES / "environment.sh"
    return {
        "here": str(TEMPLATES),
        "environment": str(Path(environment).absolute()),
        "python": sys.executable,
        "again": "chain" if arguments.chain else "requeue",
        "restarts": str(arguments.restarts),
        "ranks_per_node": str(_ranks(arguments)),
    }


def _ranks(arguments: argparse.Namespace) -> int:
    """Ranks of a node."""
    return arguments.ranks_per_node or max(1, arguments.gpus_per_node)

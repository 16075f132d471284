"""`megaxf pretrain`: train a model, or check that it could be trained. Arguments only; the work is in megaxf.train."""

from __future__ import annotations

import argparse
import json

HELP = "train a model from a run file, or continue where its run folder stands"

EPILOG = """\
SETTING is section.key=value with a value in YAML, applied after the file:
  megaxf pretrain run.yaml train.steps=100 optimizer.betas='[0.9, 0.98]'

on several GPUs or machines the same arguments go to the file that torchrun, srun or mpirun starts:
  torchrun --nproc-per-node 8 launch/pretrain.py run.yaml
  srun --ntasks-per-node 8 python launch/pretrain.py run.yaml
  mpirun -n 8 python launch/pretrain.py run.yaml

exit codes: 0 trained to the end (or was already), 2 a fault in configuration, data or checkpoint,
  3 stopped by a guard: loss or gradient not finite, a spike, replicas that differ; nothing is saved after it
  69 a rank was lost or stood still, so that all were ended: start again to go on from the newest checkpoint
  75 asked to stop (a signal, the file STOP, train.exit_after_minutes), and saved: start again to continue
  130 interrupted twice, at once and without saving
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run file, overrides, and --check."""
    parser.epilog = EPILOG
    parser.add_argument("run_file", help="a YAML file, such as those in configs/runs")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="section.key=value")
    parser.add_argument("--resume", action="store_true", help="an error where there is no checkpoint to go on from")
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="go on from a checkpoint of another model: what it lacks begins anew, and is listed",
    )
    parser.add_argument("--check", action="store_true", help="only validate, and print what would be run")
    parser.add_argument("--world-size", type=int, default=None, help="with --check: the number of ranks (default 1)")
    parser.add_argument("--json", action="store_true", help="with --check: print the resolved run as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check or train; returns the exit code."""
    from launch.signals import held
    from megaxf.config_errors import ConfigError

    if arguments.check and (arguments.resume or arguments.allow_missing):
        raise ConfigError(
            "command line", ["--resume and --allow-missing have no effect with --check, which starts nothing"]
        )
    if arguments.check:
        return _check(arguments)
    if arguments.json or arguments.world_size is not None:
        raise ConfigError("command line", ["--json and --world-size have an effect with --check only"])
    with held():  # Before libraries start threads, which take over what is blocked.
        return _train(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from megaxf.train.judge import judge
    from megaxf.train.resolved import page

    world_size = 1 if arguments.world_size is None else arguments.world_size
    _, resolved = judge(arguments.run_file, arguments.settings, world_size)
    if arguments.json:
        print(json.dumps(resolved, indent=1))
    else:
        Console(highlight=False).print(page(resolved))
    return 2 if resolved["problems"] else 0


def _train(arguments: argparse.Namespace) -> int:
    from launch.rendezvous import connect, detect, disconnect
    from megaxf.config import load_run
    from megaxf.train.initial import complete

    launch = detect()
    run = load_run(arguments.run_file, arguments.settings, launch.world_size, complete)
    device = connect(launch, run.guards.timeout_seconds)

    from megaxf.parallel.mesh import build_mesh
    from megaxf.train.console import Report
    from megaxf.train.guards import Signals
    from megaxf.train.guards.heartbeat import Heartbeat
    from megaxf.train.loop import train
    from megaxf.train.run_folder import RunFolder

    mesh = build_mesh(run.parallel.degrees(), run.parallel.order)
    report = Report(run.train.steps, quiet=launch.rank != 0)
    stacks = RunFolder(run.run_folder).stacks
    with Signals() as signals, Heartbeat(mesh, stacks, run.guards.timeout_seconds) as heartbeat:
        outcome = train(
            run,
            mesh,
            device,
            signals.asked,
            report,
            launcher=launch.launcher,
            must_resume=arguments.resume,
            allow_missing=arguments.allow_missing,
            beat=heartbeat.beat,
        )
    disconnect()
    return int(outcome)

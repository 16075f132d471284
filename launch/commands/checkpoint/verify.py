"""`megaxf checkpoint verify`: reads every byte. Arguments only; the work is in megaxf.checkpoint.checking."""

from __future__ import annotations

import argparse

HELP = "read checkpoints and name every file that is not as it was written"

EPILOG = """\
PATH is a checkpoint, or a run folder or folder of checkpoints, of which all are read; on a disk or in a store. Size and
checksum of each file are compared with the manifest, several files at once. The exit code is 2 if there is any fault.

examples:
  megaxf checkpoint verify runs/mine
  megaxf checkpoint verify runs/a/checkpoints/step-00001000 runs/b --threads 16
  megaxf checkpoint verify s3://bucket/mine --json | jq '.[].faults[].file'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("paths", metavar="PATH", nargs="+", help="checkpoints, run folders, or folders of checkpoints")
    parser.add_argument("--threads", type=int, default=8, help="files that are read at once (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Reads, compares, and lists all faults."""
    import json

    from rich.console import Console

    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.report import megabytes
    from megaxf.checkpoint.checking import bytes_to_read, find_faults
    from megaxf.checkpoint.finding import find_all
    from megaxf.config_errors import ConfigError

    if arguments.threads < 1:
        raise ConfigError("--threads", [f"{arguments.threads} should be 1 or more"])
    paths = [listed.path for path in arguments.paths for listed in find_all(path)]
    with bytes_progress("verifying", sum(map(bytes_to_read, paths)), quiet=arguments.json) as advance:
        found = {path: find_faults(path, arguments.threads, advance) for path in paths}
    if arguments.json:
        said = {path: [fault._asdict() for fault in faults] for path, faults in found.items()}
        print(json.dumps([{"path": str(path), "faults": faults} for path, faults in said.items()], indent=1))
    else:
        console = Console()
        for path, faults in found.items():
            sound = f"{path}: {megabytes(bytes_to_read(path))}, every checksum agrees"
            for line in [f"{path}/{fault.file} {fault.reason}" for fault in faults] or [sound]:
                console.print(line, style="red" if faults else "green", highlight=False, soft_wrap=True)
    return 2 if any(found.values()) else 0

"""Batch scripts from the templates in slurm/: options and settings filled in, with every word quoted for its reader."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from megaxf.config_errors import ConfigError

TEMPLATES = Path(__file__).resolve().parents[1] / "slurm"
SETTINGS = "# The settings of this job; megaxf submit replaces them.\n"
"""In a template the lines that follow, up to an empty one, are settings."""


def templates() -> list[str]:
    """The templates that a run can be submitted with."""
    return [path.stem for path in sorted(TEMPLATES.glob("*.sbatch")) if SETTINGS in path.read_text(encoding="utf-8")]


def fill(
    template: str, options: Mapping[str, str | None], settings: Mapping[str, str], arguments: Sequence[str]
) -> str:
    """The script of a job.

    options: of sbatch, without dashes; "" for one without value, None for one of the template's that is to go.
    settings: variables of the shell. arguments: those of the script, which then needs none.
    """
    text = (TEMPLATES / f"{template}.sbatch").read_text(encoding="utf-8")
    head, _, rest = text.partition(SETTINGS)
    _, _, body = rest.partition("\n\n")
    kept = [line for line in head.splitlines() if not _is_about(line, options)]
    added = [_option(name, value) for name, value in options.items() if value is not None]
    # Slurm reads options up to the first line of the script that is a command.
    kept[kept.index("set -euo pipefail") :] = [*added, "set -euo pipefail", ""]
    values = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    words = f"set -- {shlex.join(arguments)}"
    return "\n".join([*kept, "# Filled in by megaxf submit.", *values, words, "", body])


def seconds(time: str) -> int:
    """A time limit in Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]].

    Raises ConfigError for anything else.
    """
    days, dash, rest = time.rpartition("-")
    numbers = rest.split(":")
    units = (3600, 60, 1) if dash or len(numbers) == 3 else (60, 1)
    if len(numbers) > len(units) or not all(re.fullmatch("[0-9]+", word) for word in (*numbers, days or "0")):
        raise ConfigError("command line", [f"--time {time} is no time limit; write it as 48:00:00 or 2-00:00:00"])
    return 86400 * int(days or 0) + sum(int(number) * unit for number, unit in zip(numbers, units, strict=False))


def submit(script: str, *options: str) -> str:
    """Hand a script to sbatch; gives the number of the job. Raises ConfigError with what sbatch says."""
    command = ["sbatch", "--parsable", *options]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError("submit", ["there is no sbatch on this machine; --dry-run only prints the script"]) from None
    if done.returncode:
        raise ConfigError("submit", [f"sbatch refuses the job: {done.stderr.strip()}"])
    return done.stdout.strip().partition(";")[0]


def quote(value: str) -> str:
    """A value on an #SBATCH line, which Slurm splits much as a shell does, but expands nothing in."""
    if "\n" in value:
        raise ConfigError("command line", [f"{value!r} goes into a line of the script and may not have several"])
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if re.search(r"[^\w@%+=:,./-]", value) else value


def _is_about(line: str, options: Mapping[str, str | None]) -> bool:
    """Whether a line sets one of the options."""
    found = re.match(r"#SBATCH --([a-z-]+)", line)
    return bool(found) and found[1] in options  # type: ignore[index]


def _option(name: str, value: str) -> str:
    return f"#SBATCH --{name}={quote(value)}" if value else f"#SBATCH --{name}"

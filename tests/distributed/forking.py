"""Processes that start at once: forked from one that has imported what they need (tests.distributed.warm)."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.context import ForkServerContext
from pathlib import Path


def warm_processes() -> ForkServerContext:
    """What `multiprocessing.get_context` gives; its one server serves the whole session."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.warm"])
    return context


def run_megaxf(words: list[str], folder: Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """`megaxf WORDS` in a folder, without a GPU; killed after `timeout` seconds, which its return code shows."""
    with tempfile.TemporaryDirectory(prefix="megaxf-command-") as place:
        outputs = [Path(place, name) for name in ("stdout", "stderr")]
        for path in outputs:
            path.touch()
        process = warm_processes().Process(target=_megaxf, args=(words, folder, *outputs))
        process.start()
        process.join(timeout)
        process.kill()
        process.join()
        return subprocess.CompletedProcess(words, process.exitcode or 0, *(path.read_text() for path in outputs))


def _megaxf(words: list[str], folder: Path, stdout: Path, stderr: Path) -> None:
    """The process of one command."""
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.chdir(folder)
    sys.argv = ["megaxf", *words]
    from launch.megaxf import main

    sys.exit(main())

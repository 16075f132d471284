"""A line that says how far work on bytes is, how fast it goes and how long it takes still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bytes_progress(title: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Gives the function that hears of every piece of so many bytes, from any thread.

    The line goes to the error stream, and is left out where that is no terminal. total: bytes in all, if known.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda size: progress.advance(task, size)

"""The progress bar of `prepare`: how far, how fast, how long still."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


class PrepareProgress:
    """One line on the error stream; nothing but notes where that is no terminal or `quiet` is set."""

    def __init__(self, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> PrepareProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, description: str, total_bytes: int | None = None) -> None:
        """Begins a new stage; without a total it only shows that something happens."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        if not self.console.is_terminal:
            self.console.print(description)
        self._task = self._bar.add_task(description, total=total_bytes, rates="", text_bytes=0, tokens=0)

    def advance(self, input_bytes: int, text_bytes: int, tokens: int) -> None:
        """Adds what has been read, and the text and tokens made of it, by whichever process or machine."""
        assert self._task is not None
        task = self._bar.tasks[-1]
        text_bytes += task.fields["text_bytes"]
        tokens += task.fields["tokens"]
        elapsed = max(task.elapsed or 0.0, 1e-3)
        rates = f"{text_bytes / elapsed / 1e6:.1f} MB/s  {tokens / elapsed / 1e6:.2f} M tokens/s"
        self._bar.update(self._task, advance=input_bytes, rates=rates, text_bytes=text_bytes, tokens=tokens)

    def start_from(self, input_bytes: int) -> None:
        """What an earlier run has read: shown as done, and not counted as speed."""
        assert self._task is not None
        self._bar.update(self._task, advance=input_bytes)

    def note(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

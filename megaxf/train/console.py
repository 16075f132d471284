"""What a run says while it runs: rank 0 only, one line a step; coloured on a terminal, plain in a file."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from megaxf.plan.quantities import quantity
from megaxf.train.evaluate import Evaluation
from megaxf.train.metrics import TrainRecord


class Report:
    """Prints for people. `quiet` for the ranks that have nothing to say."""

    def __init__(self, steps: int, quiet: bool = False, console: Console | None = None) -> None:
        self._steps = steps
        self._console = console or Console(highlight=False, quiet=quiet, soft_wrap=True)
        self._pace: float | None = None

    def page(self, page: object) -> None:
        """Something rich can print, such as the page of the resolved run."""
        self._console.print(page)

    def say(self, message: str) -> None:
        """A notice."""
        self._console.print(Text(message))

    def warn(self, message: str) -> None:
        """A notice that should not be missed."""
        self._console.print(Text(f"note: {message}", style="yellow"))

    def step(self, record: TrainRecord) -> None:
        """The line of one step."""
        # Recent steps count more, so that the time left follows changes; the first step starts things and counts least.
        self._pace = record.seconds if self._pace is None else 0.9 * self._pace + 0.1 * record.seconds
        left = self._pace * (self._steps - record.step)
        line = Text(f"step {record.step:>{len(str(self._steps))}}/{self._steps}")
        for name, value in (step_fields(record) | {"left": duration(left)}).items():
            line.append(f"  {name} ", style="dim").append(value)
        self._console.print(line)

    def evaluation(self, step: int, found: Evaluation) -> None:
        """The line of one source's evaluation."""
        line = Text(f"step {step:>{len(str(self._steps))}}/{self._steps}", style="green")
        line.append(
            f"  validation {found.source}: loss {found.loss:.4f}, perplexity {found.perplexity:.2f} "
            f"({found.tokens:,} tokens, {duration(found.seconds)})"
        )
        self._console.print(line)


def step_fields(record: TrainRecord) -> dict[str, str]:
    """Name and text of what a step's line shows."""
    fields = {
        "loss": f"{record.loss:.4f}",
        "lr": f"{record.learning_rate:.2e}",
        "norm": f"{record.gradient_norm:.3f}",
        "tok/s": quantity(record.tokens_per_second),
        "TFLOP/s": f"{record.model_tflops:#.3g}",
        "MFU": f"{record.mfu:.1%}",
        "data": f"{record.data_wait:.1%}",
        "mem": f"{record.memory_bytes / 2**30:.2f} GiB",
    }
    return fields | ({"z": f"{record.z_loss:.2e}"} if record.z_loss else {})


def duration(seconds: float) -> str:
    """The two largest units: 0.4s, 12s, 3m20s, 2h05m, 4d03h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 24 else f"{hours // 24}d{hours % 24:02}h"

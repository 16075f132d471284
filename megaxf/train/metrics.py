"""What is recorded of a run: a line in metrics.jsonl and TensorBoard scalars for each step and each evaluation.

    {"kind": "train", "step": 12, "tokens": 98304, "loss": 4.1, "learning_rate": 0.0003, ...}
    {"kind": "guard", "step": 12, "at_step": 15, "found": "spike", "action": "rewind-and-skip-data", ...}
    {"kind": "evaluation", "step": 12, "tokens": 98304, "source": "books", "loss": 4.0, "perplexity": 54.6, ...}

`tokens` counts what the run has read so far: sequences x sequence length over all data-parallel ranks. A number that is
not finite is null. When a run goes on from a checkpoint, what was recorded beyond it is dropped: no step stands twice.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.format.manifest import write_whole
from megaxf.config_errors import ConfigError
from megaxf.train.evaluate import Evaluation
from megaxf.train.lines import Lines
from megaxf.train.writers import Writer


@dataclass(frozen=True)
class TrainRecord:
    """One optimizer step."""

    step: int
    tokens: int
    """Read so far, with this step."""
    loss: float
    z_loss: float
    learning_rate: float
    gradient_norm: float
    """Before clipping."""
    counted_tokens: int
    """Targets of this step that count in the loss."""
    seconds: float
    """Of the step, waiting for data included; evaluation and checkpoints not."""
    tokens_per_second: float
    """Of all ranks together."""
    model_tflops: float
    """Model TFLOP/s per device."""
    mfu: float
    hfu: float
    """As the MFU, with what is computed again."""
    data_wait: float
    """Share of the step that was spent waiting for data, on rank 0."""
    memory_bytes: int
    """Rank 0: most memory allocated on the GPU so far, or resident memory of the process without one."""
    idle_rows: int = 0
    """Of this step, without a target that counts: those of damaged shards that the run goes without, and of sources
    with train_on: none."""
    skipped_steps: int = 0
    """Of this start so far: steps that changed nothing, since a gradient overflowed in fp16."""
    source_losses: dict[str, float] = field(default_factory=dict)
    """Of the sources with counted targets in this step, where the run has several."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds of rank 0 by what they went for; see megaxf.train.breakdown."""
    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    """Each of the numbers of megaxf.engine.statistics by groups of layers, in the steps that are looked at."""


TAGS = {
    "loss": "train/loss",
    "z_loss": "train/z_loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "tokens": "train/tokens",
    "counted_tokens": "train/counted_tokens",
    "seconds": "throughput/seconds_per_step",
    "tokens_per_second": "throughput/tokens_per_second",
    "model_tflops": "throughput/model_tflops_per_device",
    "mfu": "throughput/mfu",
    "hfu": "throughput/hfu",
    "data_wait": "throughput/data_wait",
    "memory_bytes": "throughput/memory_bytes",
    "idle_rows": "train/idle_rows",
    "skipped_steps": "train/skipped_steps",
}
"""Field of a TrainRecord -> TensorBoard tag, over steps."""

TAGS_OF_MANY = {"source_losses": "train/loss", "times": "time"}
"""Field with several numbers -> beginning of their tags, which their names follow."""

GUARD = "guard"
"""Kind of the records of what guards have found."""

Warn = Callable[[str], None]
aloud = logging.getLogger(__name__).warning

_TAIL = 1 << 16
"""Bytes at the end of the file that are looked at first: they hold a usual record."""


class Recorder:
    """Writes records of rank 0 as they come, going on from a step (0: a new run)."""

    def __init__(self, file: Path, step: int, writers: Sequence[Writer] = (), warn: Warn = aloud) -> None:
        """Raises OSError where the file cannot be written; later, `fault` says so."""
        truncate(file, step, warn)
        self._lines = Lines(file)
        self._writers = writers

    @property
    def fault(self) -> ConfigError | None:
        """Why there are no more lines."""
        return self._lines.fault

    def train(self, record: TrainRecord) -> None:
        """Record one step."""
        values = asdict(record)
        self._line("train", values)
        scalars = {tag: values[name] for name, tag in TAGS.items()}
        many = {tag: values[name] for name, tag in TAGS_OF_MANY.items()} | record.groups
        scalars |= {f"{tag}/{name}": value for tag, found in many.items() for name, value in found.items()}
        self._scalars(scalars, record.step, record.tokens)

    def evaluation(self, step: int, tokens: int, found: Evaluation) -> None:
        """Record the evaluation of one source."""
        fields = found._asdict() | {"perplexity": found.perplexity, "counted_tokens": found.tokens}
        self._line("evaluation", fields | {"step": step, "tokens": tokens})
        names = ("loss", "perplexity")
        self._scalars({f"evaluation/{found.source}/{name}": fields[name] for name in names}, step, tokens)
        for writer in self._writers:
            writer.flush()

    def guard(self, step: int, **values: Any) -> None:
        """Record what a guard has found."""
        self._line(GUARD, {"step": step, "at_step": step, **values})

    def close(self) -> None:
        """Write what is still held."""
        self._lines.close()
        for writer in self._writers:
            writer.close()

    def _line(self, kind: str, values: dict[str, Any]) -> None:
        self._lines.add({"kind": kind, **_finite(values)})

    def _scalars(self, scalars: dict[str, float], step: int, tokens: int) -> None:
        for writer in self._writers:
            writer.scalars(scalars, step, tokens)


def _finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_records(file: Path, warn: Warn = aloud) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that a crash has cut is passed over.

    So is any other line that is no record, and `warn` is told of it.
    """
    if not file.exists():
        return
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            record = _record(line)
            if record is not None:
                yield record
            elif line.endswith(b"\n"):
                warn(f"{file}:{number} is damaged and passed over: it is no record; restore the file to have it again")


def last_step(file: Path) -> int | None:
    """The step of the last record that is whole; None where there is none. Reads the end of the file only."""
    if not file.exists():
        return None
    begin, window = file.stat().st_size, _TAIL
    with open(file, "rb") as lines:
        while begin:
            begin = max(0, file.stat().st_size - window)
            lines.seek(begin)
            # Behind the last line's end is nothing, or a torn line; before the first is a part of one, but at the
            # file's beginning.
            whole = lines.read().split(b"\n")[bool(begin) : -1]
            found = next(filter(None, map(_record, reversed(whole))), None)
            if found:
                return int(found["step"])
            window *= 2
    return None


def _record(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None where that is no record, as after a crash of the machine."""
    try:
        found = json.loads(line.decode())
    except ValueError:
        return None
    known = isinstance(found, dict) and isinstance(found.get("kind"), str) and isinstance(found.get("step"), int)
    return found if known else None


def truncate(file: Path, step: int, warn: Warn = aloud) -> None:
    """Drop the records beyond `step`; at step 0, where the run starts anew, all of them; and lines that are damaged.

    What guards have found stays, at `step`: it tells why the run went back. `at_step` still says where it was.
    """
    if not file.exists():
        return
    there = read_records(file, warn)
    found = [one if one["kind"] != GUARD else one | {"step": min(one["step"], step)} for one in there]
    kept = [one for one in found if one["kind"] == GUARD or (step and one["step"] <= step)]
    write_whole(file, b"".join(json.dumps(record).encode() + b"\n" for record in kept))

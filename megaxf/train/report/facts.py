"""The numbers of a report, read from the run folder alone."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.audit.coverage import cover
from data_pipeline.audit.positions import Session, read_positions
from megaxf.config import Run, load_run
from megaxf.config_errors import ConfigError
from megaxf.plan.parameters import count
from megaxf.train.metrics import GUARD, aloud, read_records
from megaxf.train.run_folder import RunFolder

RECENT = 100
"""Steps whose median time tells how long the rest will take."""


@dataclass(frozen=True)
class Facts:
    """A run so far."""

    run: Run[Any]
    steps: list[dict[str, Any]]
    """Records of training steps, in order."""
    evaluations: dict[str, list[dict[str, Any]]]
    """Records by source."""
    findings: list[dict[str, Any]]
    """What guards have found."""
    sessions: list[Session]
    """The starts of the run."""
    devices: list[str]
    """Of the ranks of the last start."""
    hosts: list[str]
    tokens_of_sources: dict[str, int]
    epochs: dict[str, float]
    dollars_per_hour: float | None
    """Of one device."""

    @property
    def step(self) -> int:
        """Steps made."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def trained_seconds(self) -> float:
        """Of all steps that count: what a crash has lost, evaluations and checkpoints are not in it."""
        return float(sum(record["seconds"] for record in self.steps))

    @property
    def seconds_left(self) -> float:
        """At the pace of the last steps."""
        recent = [record["seconds"] for record in self.steps[-RECENT:]]
        return statistics.median(recent) * (self.run.train.steps - self.step) if recent else 0.0

    def shares_of_time(self) -> dict[str, float]:
        """What the last steps spent their time on, with what checkpoints took between them."""
        recent = [record["times"] for record in self.steps[-RECENT:] if record.get("times")]
        sums = {name: sum(times.get(name, 0.0) for times in recent) for name in (recent[0] if recent else ())}
        return {name: seconds / sum(sums.values()) for name, seconds in sums.items()}

    def dollars(self, seconds: float) -> float | None:
        """Of all devices for a time; None where no price is known."""
        if self.dollars_per_hour is None:
            return None
        return self.dollars_per_hour * len(self.devices) * seconds / 3600

    @property
    def restarts(self) -> list[int]:
        """The steps after which the run was started again."""
        return [session.points[0].step for session in self.sessions[1:]]

    def summary(self) -> dict[str, Any]:
        """The page's table as plain values; seconds, dollars, counts."""
        last = self.steps[-1] if self.steps else {}
        return {
            "run": self.run.run_folder,
            "parameters": count(self.run.model).total,
            "step": self.step,
            "steps": self.run.train.steps,
            "tokens": last.get("tokens", 0),
            "loss": last.get("loss"),
            "validation": {source: found[-1]["loss"] for source, found in self.evaluations.items()},
            "devices": {name: self.devices.count(name) for name in dict.fromkeys(self.devices)},
            "hosts": len(set(self.hosts)),
            "starts": len(self.sessions),
            "findings": len(self.findings),
            "tokens_per_second": _middle(self.steps, "tokens_per_second"),
            "mfu": _middle(self.steps, "mfu"),
            "times": self.shares_of_time(),
            "trained_seconds": self.trained_seconds,
            "seconds_left": self.seconds_left,
            "dollars": self.dollars(self.trained_seconds),
            "dollars_left": self.dollars(self.seconds_left),
            "tokens_of_sources": self.tokens_of_sources,
            "epochs": self.epochs,
        }

    def as_json(self) -> dict[str, Any]:
        """All that the page says but the curves."""
        starts = [
            {"time": session.time, "after_step": session.points[0].step, "data_ranks": session.data_ranks}
            for session in self.sessions
        ]
        return {"summary": self.summary(), "starts": starts, "findings": self.findings}


def _middle(records: list[dict[str, Any]], name: str) -> float | None:
    values = [record[name] for record in records[-RECENT:] if record.get(name) is not None]
    return statistics.median(values) if values else None


def read(path: Path, dollars_per_hour: float | None = None) -> Facts:
    """The facts of a run folder. Raises ConfigError where it is none."""
    folder = RunFolder(path)
    if not folder.config.is_file() or not folder.metrics.is_file():
        raise ConfigError(
            str(path), [f"{path} is not the folder of a run that has started: it has no config.yaml or metrics.jsonl"]
        )
    evaluations: dict[str, list[dict[str, Any]]] = {}
    steps, findings = [], []
    for record in read_records(folder.metrics):
        if record["kind"] == GUARD:
            findings.append(record)
        elif record["kind"] == "train":
            steps.append(record)
        elif record["loss"] is not None:
            evaluations.setdefault(record["source"], []).append(record)
    sessions = read_positions(folder.positions)
    covered = cover(sessions)
    starts = folder.starts(aloud)
    ranks = starts[-1]["ranks"] if starts else []
    return Facts(
        run=load_run(folder.config),
        steps=steps,
        evaluations=evaluations,
        findings=findings,
        sessions=sessions,
        devices=[rank["device"] for rank in ranks],
        hosts=[rank["host"] for rank in ranks],
        tokens_of_sources=dict(covered.tokens),
        epochs=covered.epochs,
        dollars_per_hour=dollars_per_hour,
    )

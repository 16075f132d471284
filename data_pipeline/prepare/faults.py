"""Records that give no document: named by file and line, counted, and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from data_pipeline.errors import DataError
from data_pipeline.prepare.decide import UnitStart
from data_pipeline.prepare.plan import Plan
from data_pipeline.prepare.units import UnitRecord, Units
from data_pipeline.sources.base import Fault, place

_NOTES_A_REASON = 5


class Placed(NamedTuple):
    """A fault, and where it is."""

    source: str
    file: str
    line: int | None
    """From 1; None where the record is the whole file."""
    reason: str
    detail: str

    def error(self, advice: str = "") -> DataError:
        """In words, after the place."""
        said = f"{self.reason} ({self.detail})" if self.detail else self.reason
        return DataError(said + advice, self.file, self.line)

    def stop(self) -> DataError:
        """What ends the run."""
        return self.error("; correct it, or leave such records out with --on-error skip")


def bad_record(plan: Plan, units: Units, number: int, *fault: object) -> DataError:
    """What ends the run at a fault of a unit. Its line takes the number of records in the units before."""
    first = 0
    units.refresh()
    for earlier in plan.before(number):
        if earlier in units.records:
            first += units.records[earlier].records
        else:
            for _ in plan.units[earlier].read():
                pass
            first += plan.units[earlier].records
    return _placed(plan, number, first, Fault(*fault)).stop()  # type: ignore[arg-type]


def faults(plan: Plan, records: Sequence[UnitRecord], starts: Sequence[UnitStart]) -> Iterator[Placed]:
    """Each record that was left out, in the order of the input."""
    for number, record in enumerate(records):
        for fault in sorted(record.faults):
            yield _placed(plan, number, starts[number].records, fault)


def report_faults(
    plan: Plan, records: Sequence[UnitRecord], starts: Sequence[UnitStart], on_error: str, note: Callable[[str], None]
) -> None:
    """Notes what was left out; DataError where units of an earlier run left out what is now to stop the work."""
    seen: Counter[tuple[str, str]] = Counter()
    for fault in faults(plan, records, starts):
        if on_error == "stop":
            raise fault.stop()
        kind = (fault.source, fault.reason)
        seen[kind] += 1
        if seen[kind] <= _NOTES_A_REASON:
            note(f"skipped {fault.error()}")
        elif seen[kind] == _NOTES_A_REASON + 1:
            note(f"skipped more of this kind, all are in errors.jsonl: {fault.reason}")


def _placed(plan: Plan, number: int, first: int, fault: Fault) -> Placed:
    file, line = place(plan.units[number], first, fault.record)
    return Placed(plan.sources[plan.owners[number]], file, line, fault.reason, fault.detail)

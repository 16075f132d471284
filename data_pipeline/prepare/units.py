"""Encoded units in the folder `units`: how they are counted, found again and read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from data_pipeline.format.manifest import write_whole
from data_pipeline.prepare.documents import DOCUMENT_DTYPE
from data_pipeline.sources.base import Fault


@dataclass
class UnitRecord:
    """What became of a unit."""

    number: int
    size: int
    """Bytes of input."""
    records: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    empties: int = 0
    largest_id: int = 0
    filtered: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add(
        self,
        ids: NDArray[Any],
        documents: NDArray[Any],
        empties: int,
        filtered: dict[str, int],
        faults: Iterable[Fault],
    ) -> None:
        """Counts some more of the unit's documents."""
        self.documents += len(documents)
        self.tokens += len(ids)
        self.text_bytes += int(documents["text_bytes"].sum())
        self.empties += empties
        self.largest_id = max(self.largest_id, int(ids.max(initial=0)))
        self.filtered = dict(Counter(self.filtered) + Counter(filtered))
        self.faults.extend(faults)


def write_record(folder: Path, record: UnitRecord) -> None:
    """Says that a unit is whole; its other files must be closed."""
    write_whole(folder / f"{record.number}.json", orjson.dumps(asdict(record), default=tuple))


class Units:
    """The units that are whole, as far as they have been seen; `refresh` looks for more."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], document_dtype: np.dtype[Any] = DOCUMENT_DTYPE):
        self.folder, self.dtype, self.document_dtype = folder, dtype, document_dtype
        self.records: dict[int, UnitRecord] = {}

    def refresh(self) -> list[UnitRecord]:
        """Those that were finished since the last time, by whomever; one that a crash has damaged counts as missing."""
        names = (entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".json"))
        numbers = sorted(int(name[:-5]) for name in names)
        found = (self._read(number) for number in numbers if number not in self.records)
        new = [record for record in found if record]
        self.records |= {record.number: record for record in new}
        return new

    def ids(self, number: int) -> NDArray[Any]:
        """The ids of a unit, mapped."""
        return _mapped(self.folder / f"{number}.ids", self.dtype)

    def documents(self, number: int) -> NDArray[Any]:
        """The documents of a unit, mapped."""
        return _mapped(self.folder / f"{number}.doc", self.document_dtype)

    def _read(self, number: int) -> UnitRecord | None:
        path = self.folder / f"{number}.json"
        try:
            found = orjson.loads(path.read_bytes())
            record = UnitRecord(**found | {"faults": [Fault(*fault) for fault in found["faults"]]})
            sizes = [path.with_suffix(ending).stat().st_size for ending in (".ids", ".doc")]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        wanted = [record.tokens * self.dtype.itemsize, record.documents * self.document_dtype.itemsize]
        return record if sizes == wanted else None


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A plain array over the file, since slices of np.memmap are slow."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)

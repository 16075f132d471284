"""The units of all inputs, numbered: the same on every machine, so that nothing need be agreed upon."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import DataError, shown
from data_pipeline.format.folder import names_of
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.sources.base import Unit
from data_pipeline.sources.find import find_units

SMALLEST_UNIT, LARGEST_UNIT = 8 << 20, 512 << 20
_UNITS = 1024


@dataclass(frozen=True)
class Plan:
    """What is to be encoded. Arrays over units are in the order of the input."""

    sources: tuple[str, ...]
    """A title for each input."""
    units: tuple[Unit, ...]
    owners: tuple[int, ...]
    """[units] number of the source."""
    first_files: tuple[int, ...]
    """[units] number in `origins` of the unit's first file."""
    origins: list[str]
    """The files that documents come from, in the order of the input."""
    ids_digest: str
    """Changes when an encoded unit may: with the input, the tokenizer, and what is told to it."""
    shards_digest: str
    """Changes when encoded units are put into shards in another way."""

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(unit.size for unit in self.units)

    def before(self, number: int) -> list[int]:
        """The units that hold the records before a unit's own in the same file."""
        first = number
        while first and self.first_files[first - 1] == self.first_files[number]:
            first -= 1
        return list(range(first, number))


def make_plan(options: PrepareOptions, tokenizer_digest: str) -> Plan:
    """Finds the inputs and numbers their units. Raises DataError when an input is missing or holds nothing.

    tokenizer_digest: of the tokenizer that was given; empty when one is to be trained.
    """
    found = _find(options)
    names = tuple(shown(Path(name).name or name) for name in options.inputs)
    units = tuple(unit for group in found for unit in group)
    owners = tuple(owner for owner, group in enumerate(found) for _ in group)
    first_files, origins = _files(units, owners)
    told = {"ids": options.for_ids(), "tokenizer": tokenizer_digest}
    keys = [(unit.key, unit.version) for unit in units]
    ids_digest = _digest(told | {"keys": keys, "owners": owners})
    shards_digest = _digest({"ids": ids_digest, "shards": options.for_shards()})
    return Plan(names, units, owners, first_files, origins, ids_digest, shards_digest)


def default_unit_bytes(total: int) -> int:
    """Some 1024 units, but none so small that it costs more to keep than to encode, or so large that it is slow."""
    return max(SMALLEST_UNIT, min(LARGEST_UNIT, total // _UNITS))


def _find(options: PrepareOptions) -> list[list[Unit]]:
    """The units of each input; searched twice where the input turns out to be large."""
    wanted = options.unit_bytes or SMALLEST_UNIT
    ours = names_of(options.output)  # they may lie in the folder of the input, and come and go
    found = find_units(options.inputs, options.read, wanted, ours)
    fitting = options.unit_bytes or default_unit_bytes(sum(unit.size for group in found for unit in group))
    return found if fitting == wanted else find_units(options.inputs, options.read, fitting, ours)


def _files(units: Sequence[Unit], owners: Sequence[int]) -> tuple[tuple[int, ...], list[str]]:
    """The number of each unit's first file, and all files; neighbouring units of one file share its number."""
    first_files: list[int] = []
    origins: list[str] = []
    previous: tuple[int, str] | None = None
    for unit, owner in zip(units, owners, strict=True):
        this = None if unit.files else (owner, unit.file)
        if this is None or this != previous:
            first_files.append(len(origins))
            origins += map(shown, unit.files or (unit.file,))
        else:
            first_files.append(len(origins) - 1)
        previous = this
    if len(origins) > 1 << 32:
        raise DataError(f"the inputs hold {len(origins):,} files, and 2^32 can be numbered; pack them into JSONL first")
    return tuple(first_files), origins


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

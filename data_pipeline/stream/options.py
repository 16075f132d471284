"""What a user says about the cache of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data_pipeline.errors import DataError
from data_pipeline.stream.store import Retries


@dataclass(frozen=True)
class CacheOptions:
    """Where a node keeps the files of a store, and how it gets them."""

    folder: str | Path
    """On the node's own disk; all processes of a node, and all their data sets, share it."""
    limit_bytes: int = 256 << 30
    """Of all shards in the folder together, those that are being fetched included."""
    ahead_bytes: int = 4 << 30
    """How much of what is needed next is fetched before it is asked for, for each data set."""
    connections: int = 4
    """Requests at a time for one file."""
    retries: Retries = field(default_factory=Retries)
    on_damage: Literal["stop", "skip"] = "stop"
    """What a shard means whose bytes in the store are wrong however often it is asked."""
    quarantine: str | Path | None = None
    """With "skip": the folder of the run that lists the shards it goes without."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the store, such as `endpoint_url` of s3."""

    def __post_init__(self) -> None:
        for name in ("limit_bytes", "connections"):
            if getattr(self, name) < 1:
                raise DataError(f"{name} = {getattr(self, name)} of the cache must be 1 or more")
        if self.retries.attempts < 1:
            raise DataError(f"retries.attempts = {self.retries.attempts} of the cache must be 1 or more")
        if self.on_damage not in ("stop", "skip"):
            raise DataError(f'on_damage = {self.on_damage!r} of the cache must be "stop" or "skip"')
        if (self.on_damage == "skip") != (self.quarantine is not None):
            raise DataError(
                f"on_damage = {self.on_damage!r} and quarantine = {self.quarantine} of the cache do not fit: "
                '"skip" needs a quarantine folder, which belongs to the run, and "stop" has no use for one'
            )

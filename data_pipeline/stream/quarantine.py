"""Shards that a run goes without, because the store holds damaged bytes of them.

    <folder>/<manifest digest>.<split>.<shard>.json     one small file a shard, in a folder that belongs to the run

The order of samples does not change: rows of such a shard are EOD, and none of their labels counts. The list is read
when a run starts or goes on, then it is the same for all ranks. A shard found damaged later is out at once for the
rank that found it, and for every rank from the next start on; until then a rank whose cache holds a good copy still
trains on it. So who repeats such a run bit by bit starts it with the folder that it left behind.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import orjson

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import Manifest, Shard, write_whole


class Quarantine:
    """The shards of one split that are out."""

    def __init__(self, folder: str | Path, manifest: Manifest, split: str):
        """Reads what earlier starts of the run found. Raises DataError when a record is not readable."""
        self._folder, self._prefix = Path(folder), f"{manifest.digest[:32]}.{split}"
        self._record = {"manifest": manifest.digest, "split": split}
        self.reasons: dict[str, str] = {}
        """Why each shard is out, by its name."""
        for path in sorted(self._folder.glob(f"{self._prefix}.*.json")):
            try:
                found = orjson.loads(path.read_bytes())
                self.reasons[found["shard"]] = found["reason"]
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"is not a record of a damaged shard ({error}); delete it", path) from None

    def add(self, shard: Shard, reason: str) -> None:
        """Takes a shard out, for this process at once and for all others at the next start."""
        self.reasons[shard.name] = reason
        self._folder.mkdir(parents=True, exist_ok=True)
        record = {**self._record, "shard": shard.name, "tokens": shard.tokens, "reason": reason}
        path = self._folder / f"{self._prefix}.{shard.name}.json"
        # Several ranks may write the same record at once: then one of them finds its temporary file renamed already.
        with suppress(FileNotFoundError):
            write_whole(path, orjson.dumps(record, option=orjson.OPT_INDENT_2))

"""The folder that a data set is built in: `<output>.building`, shared by all who build.

    lock, lead        held by all builders; by the one who leads
    plan.json         written last of what the leader lays out: the digests of the plan
    tokenizer/        the tokenizer of all
    units/            an encoded unit each: N.ids, N.doc, and N.json written last
    duplicates        a byte a document: 1 where it is to be left out
    decision.json     which documents go where; written when all units are there
    runs/, merged/    the documents of the units in the order of their places; see `shuffle`
    shards/           what is known of a finished shard, written last
    set/              the data set to be: it takes its final name in one move
    joined/           who takes part
    failed/           why a part of an array job stopped, for the others

A build that is stopped leaves this folder, and the next one with the same plan goes on from what is whole in it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from data_pipeline.disk import free_bytes
from data_pipeline.errors import DataError
from data_pipeline.format.folder import LOCK, busy, clear_folder, locked
from data_pipeline.format.manifest import write_whole
from data_pipeline.format.report import megabytes
from data_pipeline.prepare.plan import Plan


class Place:
    """The paths in the folder, and who may use it."""

    def __init__(self, output: str | Path):
        self.output = Path(os.path.abspath(output))
        self.folder = self.output.with_name(self.output.name + ".building")
        self.tokenizer = self.folder / "tokenizer"
        self.units = self.folder / "units"
        self.duplicates = self.folder / "duplicates"
        self.decision = self.folder / "decision.json"
        self.runs = self.folder / "runs"
        self.merged = self.folder / "merged"
        self.shards = self.folder / "shards"
        self.set = self.folder / "set"
        self._failed = self.folder / "failed"
        self._plan = self.folder / "plan.json"
        self._old_failures: set[tuple[str, int]] = set()

    @contextmanager
    def lead(self, plan: Plan) -> Iterator[str]:
        """Makes the folder ready for this plan and holds it; gives what became of an older build, in words.

        Raises DataError when another build is at work here.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lead", fcntl.LOCK_EX) as leading:
            if not leading:
                raise busy(self.folder)
            said = self._clear(plan)
            with self.join(0):
                for folder in (self.units, self.runs, self.merged, self.shards, self.set, self._failed):
                    folder.mkdir(exist_ok=True)
                yield said

    def announce(self, plan: Plan) -> None:
        """Tells the other builders that they may begin."""
        write_whole(self._plan, orjson.dumps([plan.ids_digest, plan.shards_digest]))

    def announced(self, plan: Plan) -> bool:
        """Whether the leader has laid out this very plan."""
        return self._known() == (plan.ids_digest, plan.shards_digest)

    @contextmanager
    def join(self, rank: int) -> Iterator[None]:
        """Keeps others from replacing the folder, and lets the leader know of this builder."""
        with locked(self.folder / LOCK, fcntl.LOCK_SH):
            self._old_failures = self._failures()
            (self.folder / "joined").mkdir(exist_ok=True)
            (self.folder / "joined" / str(rank)).touch()
            yield

    def missing_builders(self, count: int) -> list[int]:
        """Those that have not joined. One that comes when all is finished could not tell that it is."""
        return [rank for rank in range(count) if not (self.folder / "joined" / str(rank)).exists()]

    def fail(self, title: str, error: Exception) -> None:
        """Leaves word for the other builders."""
        if not self._failed.is_dir():
            return
        try:
            write_whole(self._failed / title, os.fsencode(str(error) or repr(error)))
        except OSError:
            # On a full disk there may still be room for a name, which says enough.
            with suppress(OSError):
                (self._failed / title).touch()
                (self._failed / f"{title}.part").unlink(missing_ok=True)

    def check_failures(self) -> None:
        """Raises DataError when another builder has stopped since this one began."""
        for name, _ in sorted(self._failures() - self._old_failures):
            said = os.fsdecode((self._failed / name).read_bytes())
            raise DataError(f"{name} stopped: {said or 'it had no room on the disk to say why; see what it printed'}")

    def free_bytes(self) -> int:
        """Bytes that may be written on this disk."""
        return free_bytes(self.folder)

    def full(self, needed: int) -> DataError:
        """What to say when the disk is, or will be, full."""
        return DataError(
            f"no space: some {megabytes(needed)} more are needed while it is built, and {megabytes(self.free_bytes())} "
            "are free; make room and run the same command again, it goes on from here",
            self.folder,
        )

    def _clear(self, plan: Plan) -> str:
        """Removes what another plan has left, if nobody is at work on it."""
        known = self._known()
        if known == (plan.ids_digest, plan.shards_digest):
            return ""
        same_ids = known is not None and known[0] == plan.ids_digest
        with locked(self.folder / LOCK, fcntl.LOCK_EX) as alone:
            if not alone:
                raise busy(self.folder)
            kept = {LOCK, "lead", *(("units", "tokenizer") if same_ids else ())}
            self._plan.unlink(missing_ok=True)  # first: without it nobody takes what is left for whole
            clear_folder(self.folder, kept)
        if same_ids:
            return "keeps the encoded units: they were to be put into shards with other options"
        return "" if known is None else "begins anew: a build with other inputs or options was left here unfinished"

    def _known(self) -> tuple[str, str] | None:
        try:
            ids_digest, shards_digest = orjson.loads(self._plan.read_bytes())
        except (OSError, ValueError):
            return None
        return ids_digest, shards_digest

    def _failures(self) -> set[tuple[str, int]]:
        found = os.scandir(self._failed) if self._failed.is_dir() else ()
        return {(entry.name, entry.stat().st_mtime_ns) for entry in found if not entry.name.endswith(".part")}

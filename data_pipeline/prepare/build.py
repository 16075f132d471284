"""Raw documents to a shard folder: what `megaxf prepare` does.

    plan       inputs -> units, numbered
    encode     each unit -> ids, and 40 bytes a document           any number of processes and machines
    decide     duplicates, splits, where shards are cut            the leader
    shuffle    each unit -> a run, in the order of the shards      any number of processes and machines
    assemble   each shard <- slices of runs (or units)             any number of processes and machines
    finish     the manifest, and the name of the folder            the leader

Units and shards are numbered by the input alone and each is a file of its own, written whole: so the result does not
depend on who does what, and what is done is not done again after a kill.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from data_pipeline.errors import DataError, unusable
from data_pipeline.format.folder import check_output
from data_pipeline.format.manifest import Manifest, Shard, token_dtype
from data_pipeline.prepare.assemble import Assembly, assemble_shard, finished_shard, shard_job
from data_pipeline.prepare.decide import Chooser, Decision, decide, unit_starts
from data_pipeline.prepare.duplicates import mark_duplicates
from data_pipeline.prepare.encode import BadRecord, Encoding, UnitJob, encode_unit, use_opened
from data_pipeline.prepare.faults import bad_record, report_faults
from data_pipeline.prepare.finish import finish
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.place import Place
from data_pipeline.prepare.plan import Plan, make_plan
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.prepare.ranks import Ranks
from data_pipeline.prepare.shuffle import (
    ENTRY_DTYPE,
    FAN_IN,
    Shuffle,
    all_groups,
    all_runs,
    merge_runs,
    write_run,
)
from data_pipeline.prepare.tokenizer import open_given, train, with_fast_path
from data_pipeline.prepare.units import UnitRecord, Units
from data_pipeline.prepare.workers import Workers
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer

Job = TypeVar("Job")

_POLL_SECONDS = 0.2
_BYTES_A_TOKEN = 4
"""Of text, for the estimate of the space that is needed; a cautious one, as only a sure lack should be refused."""


def prepare(options: PrepareOptions, progress: PrepareProgress, ranks: Ranks | None = None) -> Manifest | None:
    """Builds the shard folder and returns its manifest; None for a builder that does not lead.

    Raises DataError on a bad request, on a bad record (unless these are to be skipped), and when a split would be
    empty; then there is nothing at the output, and what is done is kept beside it for the next run.
    """
    ranks = ranks or Ranks()
    with ranks:
        options.check()
        place = Place(options.output)
        check_output(place.output, options.overwrite)
        given = open_given(options)
        plan = make_plan(options, given.digest if given else "")
        ranks.meet()
        try:
            with progress, Workers(options.processes) as workers:
                return _Build(options, given, plan, place, ranks, workers, progress).run()
        except Exception as error:
            said = _for_people(error, place, space_needed(plan, options.keep_order))
            if ranks.count > 1:  # whatever it was: the others would wait for this one for ever
                place.fail(f"{ranks.title} {ranks.rank}", said)
            if said is error:
                raise
            raise said from None


def _for_people(error: Exception, place: Place, needed: int) -> Exception:
    """What to say about a full disk, where so many bytes are needed, or a path; any other error is itself."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return place.full(needed)
    return unusable(error) if isinstance(error, OSError) and error.filename else error


def space_needed(plan: Plan, keep_order: bool) -> int:
    """Bytes on disk, by a cautious estimate: all ids in units, in runs (where many are merged, twice) and in shards."""
    copies = 2 if keep_order else 3 + (len(plan.units) > FAN_IN)
    return copies * 2 * plan.size // _BYTES_A_TOKEN


class _Build:
    """One builder's way through the steps."""

    def __init__(
        self,
        options: PrepareOptions,
        given: Tokenizer | None,
        plan: Plan,
        place: Place,
        ranks: Ranks,
        workers: Workers,
        progress: PrepareProgress,
    ):
        self.options, self.given, self.plan, self.place = options, given, plan, place
        self.ranks, self.workers, self.progress = ranks, workers, progress

    def run(self) -> Manifest | None:
        """All steps; followers begin when the leader has laid out the work, and end with their last shard."""
        with ExitStack() as stack:
            if self.ranks.leads:
                self._lay_out(stack.enter_context(self.place.lead(self.plan)))
            else:
                self._follow(stack)
            tokenizer = self.given or load_tokenizer(self.place.tokenizer)
            self.tokenizer = with_fast_path(tokenizer, self.options, self.plan.units, self.progress.note)
            dtype = token_dtype(self.tokenizer.vocab_size)
            self.units = Units(self.place.units, dtype)
            self._encode()
            decision = self._decide()
            shards = self._assemble(decision, None if self.options.keep_order else self._shuffle(decision))
            if not self.ranks.leads:
                return None
            self._wait(lambda: self.place.missing_builders(self.ranks.count), "begin")
            return finish(self.options, self.plan, self.place, self.tokenizer, self._records(), decision, shards)

    def _lay_out(self, said: str) -> None:
        """The tokenizer, and the word to the others; checks that there is space."""
        if said:
            self.progress.note(said)
        if not self.place.announced(self.plan) and not self.place.tokenizer.exists():
            if self.given:
                self.given.save(self.place.tokenizer)
            else:
                train(self.options, self.plan.units, self.place.tokenizer, self.progress)
        self.place.announce(self.plan)

    def _follow(self, stack: ExitStack) -> None:
        self._wait(lambda: [] if self.place.announced(self.plan) else [0], "lay out the work")
        stack.enter_context(self.place.join(self.ranks.rank))

    def _encode(self) -> None:
        """The units of this builder that are not done; the leader waits for those of all."""
        numbers = range(len(self.plan.units))
        self.progress.stage("tokenising", self.plan.size)
        if (done := self.units.refresh()) and self.ranks.leads:
            self.progress.note(f"continues: {len(done)} of {len(numbers)} units are done")
        self.progress.start_from(sum(record.size for record in done))
        self._check_space()
        encoding = Encoding(
            self.place.tokenizer,
            self.tokenizer.digest,
            "gigatoken" if self.tokenizer.backend.startswith("gigatoken") else "reference",
            self.place.units,
            self.options.add_bos,
            self.options.on_error == "stop",
        )
        use_opened(encoding, self.tokenizer)
        todo = [number for number in self.ranks.mine(numbers) if number not in self.units.records]
        jobs = (UnitJob(number, self.plan.units[number], self.plan.first_files[number]) for number in todo)
        try:
            for _ in self.workers.map(partial(encode_unit, encoding), jobs):
                self._advance(self.units)
        except BadRecord as bad:
            raise bad_record(self.plan, self.units, *bad.args) from None
        if self.ranks.leads:
            self._wait(self._missing_units, "encode")

    def _decide(self) -> Decision:
        """The leader decides, the others wait for it."""
        if self.ranks.leads and not self.place.decision.exists():
            self.progress.stage("deciding which documents go where")
            self._make_decision().write(self.place.decision)
        self._wait(lambda: [] if self.place.decision.exists() else [0], "decide")
        decision = Decision.read(self.place.decision)
        if self.ranks.leads:
            report_faults(self.plan, self._records(), decision.starts, self.options.on_error, self.progress.note)
        return decision

    def _make_decision(self) -> Decision:
        records = self._records()
        starts = unit_starts(self.plan, records)
        if self.options.deduplicate:
            hashed = (self.units.documents(number) for number in range(len(records)))
            documents = sum(record.documents for record in records)
            mark_duplicates(hashed, documents, self.place.duplicates, self.workers)
        decision = decide(self.plan, starts, self._chooser(), self.options, self.workers)
        self._check_splits(decision)
        return decision

    def _shuffle(self, decision: Decision) -> tuple[Units, int]:
        """The runs to read shards from, once those of all builders are there, and how many they are."""
        counts = {split: sum(count[split].documents for count in decision.counts) for split in self.options.splits}
        runs, merged = (Units(folder, self.units.dtype, ENTRY_DTYPE) for folder in (self.place.runs, self.place.merged))
        shuffle = Shuffle(self._chooser(), counts, runs, merged)
        every = all_runs(self.plan, decision)
        self._write_runs("shuffling documents", runs, every, partial(write_run, shuffle))
        if not (groups := all_groups(every)):
            return runs, len(every)
        self._write_runs("merging shuffled documents", merged, groups, partial(merge_runs, shuffle))
        return merged, len(groups)

    def _write_runs(self, title: str, runs: Units, jobs: Sequence[Job], write: Callable[[Job], None]) -> None:
        """Those of this builder that are not done; then waits until those of all are there."""
        self.progress.stage(title, self.plan.size)
        done = Units(runs.folder, runs.dtype, runs.document_dtype)  # its records need not travel with every job

        def missing() -> list[int]:
            self._advance(done)
            return [number for number in range(len(jobs)) if number not in done.records]

        mine = self.ranks.mine(range(len(jobs)))
        todo = sorted(set(mine).intersection(missing()))
        for _ in self.workers.map(write, (jobs[number] for number in todo)):
            self._advance(done)
        self._wait(missing, "shuffle")

    def _assemble(self, decision: Decision, runs: tuple[Units, int] | None) -> dict[str, list[Shard]]:
        """The shards of this builder that are not done; the leader waits for those of all and gives them by split."""
        assembly = Assembly(self._chooser(), self.place.set, self.place.shards, *(runs or ()))
        for split in self.options.splits:
            (self.place.set / split).mkdir(exist_ok=True)
        self.progress.stage("assembling shards")
        mine = [cut for cut in self.ranks.mine(decision.cuts) if not finished_shard(assembly, cut)]
        jobs = (shard_job(assembly, cut, decision.starts) for cut in mine)
        for _ in self.workers.map(partial(assemble_shard, assembly), jobs):
            pass
        if not self.ranks.leads:
            return {}
        shards: dict[int, Shard] = {}

        def missing() -> list[int]:
            left = [number for number in range(len(decision.cuts)) if number not in shards]
            found = {number: finished_shard(assembly, decision.cuts[number]) for number in left}
            shards.update({number: shard for number, shard in found.items() if shard})
            return [number for number in left if number not in shards]

        self._wait(missing, "assemble shards")
        by_split: dict[str, list[Shard]] = {split: [] for split in self.options.splits}
        for number, cut in enumerate(decision.cuts):
            by_split[cut.split].append(shards[number])
        return by_split

    def _records(self) -> list[UnitRecord]:
        return [self.units.records[number] for number in range(len(self.plan.units))]

    def _chooser(self) -> Chooser:
        units = Units(self.units.folder, self.units.dtype)  # without the records: it travels with every job
        return Chooser(
            units, self.place.duplicates if self.options.deduplicate else None, self.options.validation_fraction
        )

    def _advance(self, units: Units) -> None:
        """Shows what all builders have done."""
        for record in units.refresh():
            self.progress.advance(record.size, record.text_bytes, record.tokens)

    def _missing_units(self) -> list[int]:
        self._advance(self.units)
        return [number for number in range(len(self.plan.units)) if number not in self.units.records]

    def _wait(self, missing: Callable[[], Sequence[int]], what: str) -> None:
        """Until nothing is missing; says who has not yet done it. Ends only so, by Ctrl-C, or when another stops."""
        said = ""
        while left := missing():
            text = f"waits for {self.ranks.others(left)} to {what}"
            if text != said:
                self.progress.note(text)
                said = text
            self.place.check_failures()
            time.sleep(_POLL_SECONDS)

    def _check_space(self) -> None:
        done = sum(record.size for record in self.units.records.values())  # their ids are there once already
        needed = space_needed(self.plan, self.options.keep_order) - 2 * done // _BYTES_A_TOKEN
        if self.ranks.leads and needed > self.place.free_bytes():
            raise self.place.full(needed)

    def _check_splits(self, decision: Decision) -> None:
        """Raises DataError when a split has no document."""
        records = self.units.records.values()
        documents = {split: sum(count[split].documents for count in decision.counts) for split in self.options.splits}
        if not any(documents.values()):
            empties = sum(record.empties for record in records)
            faulty = sum(len(record.faults) for record in records)
            short = sum(sum(record.filtered.values()) for record in records)
            raise DataError(
                f"nothing to train on: no document in {', '.join(self.options.inputs)} has any text "
                f"({empties} empty, {faulty} faulty, {short} too short or too long)"
            )
        for split, count in documents.items():
            if not count:
                raise DataError(
                    f"none of the {sum(documents.values())} documents fell into the {split} split with "
                    f"--validation-fraction {self.options.validation_fraction}; give more documents, another fraction, "
                    "or 0 for no validation split"
                )

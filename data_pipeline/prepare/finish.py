"""The last step: everything that is said about the data set, and its name."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import orjson

from data_pipeline.errors import shown
from data_pipeline.format.folder import replace_folder
from data_pipeline.format.manifest import Manifest, Shard, Source, Split, token_dtype, write_manifest, write_origins
from data_pipeline.prepare.decide import Decision
from data_pipeline.prepare.faults import faults
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.place import Place
from data_pipeline.prepare.plan import Plan
from data_pipeline.prepare.units import UnitRecord
from data_pipeline.tokenizer.base import Tokenizer

ERRORS = "errors.jsonl"


def finish(
    options: PrepareOptions,
    plan: Plan,
    place: Place,
    tokenizer: Tokenizer,
    records: Sequence[UnitRecord],
    decision: Decision,
    shards: dict[str, list[Shard]],
) -> Manifest:
    """Writes what is not shards, the manifest last, and gives the folder its name."""
    tokenizer.save(place.set / "tokenizer")
    errors = place.set / ERRORS
    errors.unlink(missing_ok=True)
    if options.on_error == "skip":
        write_errors(errors, plan, records, decision)
    manifest = Manifest(
        name=shown(options.name or place.output.name),
        dtype=token_dtype(tokenizer.vocab_size).name,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        bos_id=tokenizer.bos_id,
        largest_id=max((record.largest_id for record in records), default=0),
        splits={split: _split(split, found, decision) for split, found in sorted(shards.items())},
        tokenizer={"kind": tokenizer.kind, "digest": tokenizer.digest, "eod_token": tokenizer.eod_token},
        sources=tuple(sources(plan, records, decision)),
        settings=options.settings() | {"tokenizer_library": tokenizer.backend},
        origins_xxh3_128=write_origins(place.set, plan.origins),
    )
    write_manifest(place.set, manifest)
    replace_folder(place.set, place.output)
    clear(place.folder)
    return manifest


def clear(folder: Path) -> None:
    """Removes what only the build has needed."""
    shutil.rmtree(folder, ignore_errors=True)


def sources(plan: Plan, records: Sequence[UnitRecord], decision: Decision) -> Iterator[Source]:
    """What came of each input."""
    for owner, (name, digest) in enumerate(zip(plan.sources, decision.digests, strict=True)):
        numbers = [number for number, found in enumerate(plan.owners) if found == owner]
        mine = [records[number] for number in numbers]
        counts = [decision.counts[number] for number in numbers]
        splits = sorted(decision.counts[0])
        documents = {split: sum(count[split].documents for count in counts) for split in splits}
        yield Source(
            name=name,
            digest=digest,
            input_bytes=sum(record.size for record in mine),
            text_bytes=sum(count[split].text_bytes for count in counts for split in splits),
            documents=_positive(documents),
            tokens=_positive({split: sum(count[split].tokens for count in counts) for split in splits}),
            empties=sum(record.empties for record in mine),
            errors=_added({fault.reason: 1} for record in mine for fault in record.faults),
            duplicates=sum(record.documents for record in mine) - sum(documents.values()),
            filtered=_added(record.filtered for record in mine),
            longest=max((count[split].longest for count in counts for split in splits), default=0),
        )


def write_errors(path: Path, plan: Plan, records: Sequence[UnitRecord], decision: Decision) -> None:
    """A line of JSON for each record that was left out."""
    with open(path, "wb") as file:
        for fault in faults(plan, records, decision.starts):
            file.write(orjson.dumps(fault._asdict(), option=orjson.OPT_APPEND_NEWLINE))


def _split(split: str, shards: list[Shard], decision: Decision) -> Split:
    counts = [count[split] for count in decision.counts]
    return Split(
        tokens=sum(count.tokens for count in counts),
        documents=sum(count.documents for count in counts),
        longest=max(count.longest for count in counts),
        text_bytes=sum(count.text_bytes for count in counts),
        shards=tuple(shards),
    )


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _positive(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}

"""One unit of input to ids in files: the work that is spread over processes and machines.

units/N.ids     the ids of its documents, each ended by EOD
units/N.doc     40 bytes a document
units/N.json    counts; written last, so a unit that has it is whole
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.format.manifest import token_dtype
from data_pipeline.prepare.documents import DOCUMENT_DTYPE, hash_texts
from data_pipeline.prepare.units import UnitRecord, write_record
from data_pipeline.sources.base import Fault, Texts, Unit
from data_pipeline.tokenizer.base import Backend, Tokenizer, load_tokenizer

_MOST_DOCUMENTS = 1 << 16
"""At a time: lists and objects of a very short text take many times its size."""

FORGED = "the text encodes to the end-of-document token"


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens, and where these go; small, since it travels with every unit."""

    tokenizer: Path
    tokenizer_digest: str
    backend: Backend
    units: Path
    add_bos: bool
    stop: bool
    """Whether the first fault ends the work."""


class UnitJob(NamedTuple):
    """A unit to encode."""

    number: int
    unit: Unit
    first_file: int
    """Number of its first file among the origins."""


class BadRecord(Exception):
    """A fault that is to end the work: the number of the unit, and the parts of the `Fault`."""


class _Encoded(NamedTuple):
    """Some documents of a unit."""

    ids: NDArray[Any]
    documents: NDArray[Any]
    empties: int
    faults: list[Fault]


def encode_unit(encoding: Encoding, job: UnitJob) -> None:
    """Writes the files of a unit. Raises BadRecord where the first fault is to stop the work."""
    tokenizer = _tokenizer(encoding)
    record = UnitRecord(job.number, size=job.unit.size)
    with ExitStack() as stack:
        paths = [encoding.units / f"{job.number}.{ending}" for ending in ("ids", "doc")]
        ids_file, documents_file = (stack.enter_context(open(path, "wb")) for path in paths)
        for texts in chain.from_iterable(map(_pieces, job.unit.read())):
            encoded = _encode(tokenizer, texts, encoding.add_bos)
            if encoding.stop and encoded.faults:
                raise BadRecord(job.number, *min(encoded.faults))
            # Where each record is a whole file, the file says all.
            name = "file" if job.unit.files else "record"
            encoded.documents[name] = encoded.documents["record"]
            if job.unit.files:
                encoded.documents["record"] = 0
            encoded.documents["file"] += np.uint32(job.first_file)
            ids_file.write(encoded.ids.data)
            documents_file.write(encoded.documents.data)
            record.add(encoded.ids, encoded.documents, encoded.empties, texts.filtered, encoded.faults)
    record.records = job.unit.records
    write_record(encoding.units, record)


def _pieces(texts: Texts) -> Iterator[Texts]:
    """The same texts, not too many at a time; what else is known of them comes with the first."""
    yield texts._replace(texts=texts.texts[:_MOST_DOCUMENTS], records=texts.records[:_MOST_DOCUMENTS])
    for start in range(_MOST_DOCUMENTS, len(texts.texts), _MOST_DOCUMENTS):
        stop = start + _MOST_DOCUMENTS
        yield Texts(texts.texts[start:stop], texts.records[start:stop], [], {}, 0)


def _encode(tokenizer: Tokenizer, texts: Texts, add_bos: bool) -> _Encoded:
    """The documents among texts: blank ones are counted, and those that forge an EOD are faults."""
    wanted = [index for index, text in enumerate(texts.texts) if text and not text.isspace()]
    chosen = texts.texts if len(wanted) == len(texts.texts) else [texts.texts[index] for index in wanted]
    data = [text.encode() for text in chosen]
    ids, lengths = tokenizer.encode_documents(chosen)
    documents = np.zeros(len(chosen), DOCUMENT_DTYPE)
    documents["high"], documents["low"] = hash_texts(data).T
    documents["text_bytes"] = [len(text) for text in data]
    documents["record"] = texts.records[wanted]
    empties, faults = len(texts.texts) - len(wanted), list(texts.faults)
    forged = _documents_with(tokenizer.eod_id, ids, lengths)
    if len(forged):
        faults += [Fault(int(documents["record"][index]), FORGED) for index in forged]
        keep = np.ones(len(lengths), bool)
        keep[forged] = False
        ids, lengths, documents = ids[np.repeat(keep, lengths)], lengths[keep], documents[keep]
    ids, lengths = _mark(ids, lengths, tokenizer, add_bos)
    documents["length"] = lengths
    return _Encoded(ids, documents, empties, faults)


def _documents_with(token: int, ids: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
    """The numbers of the documents that hold a token."""
    places = np.flatnonzero(ids == token)
    return np.unique(np.searchsorted(np.cumsum(lengths), places, side="right"))


def _mark(
    ids: NDArray[Any], lengths: NDArray[Any], tokenizer: Tokenizer, add_bos: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each document between its marks, and the lengths with them."""
    bos = [tokenizer.bos_id] if add_bos else []
    longer = lengths + 1 + len(bos)
    ends = np.cumsum(longer)
    out = np.empty(int(ends[-1]) if len(ends) else 0, token_dtype(tokenizer.vocab_size))
    text = np.ones(len(out), bool)
    for mark, places in zip([tokenizer.eod_id, *bos], (ends - 1, ends - longer), strict=False):
        out[places] = mark
        text[places] = False
    out[text] = ids
    return out, longer


_opened: dict[tuple[Path, str, Backend], Tokenizer] = {}
"""The tokenizer of this process, which takes a second to open; the digest tells a new one from an old in its place."""


def use_opened(encoding: Encoding, tokenizer: Tokenizer) -> None:
    """Encode units of this process with a tokenizer that is open already."""
    _opened.clear()
    _opened[encoding.tokenizer, encoding.tokenizer_digest, encoding.backend] = tokenizer


def _tokenizer(encoding: Encoding) -> Tokenizer:
    if (encoding.tokenizer, encoding.tokenizer_digest, encoding.backend) not in _opened:
        use_opened(encoding, load_tokenizer(encoding.tokenizer, backend=encoding.backend))
    (tokenizer,) = _opened.values()
    return tokenizer

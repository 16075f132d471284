"""Texts to be scored: documents of a shard folder, or of any files that `megaxf prepare` reads, as token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset, open_dataset
from data_pipeline.format.manifest import is_dataset
from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.find import find_units
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from megaxf.generate.errors import GenerateError

UNIT_BYTES = 1 << 26
SAMPLE = 200
"""Tokens by which two tokenizers are compared."""


class Document(NamedTuple):
    """One text."""

    tokens: list[int]
    """Without an end-of-document token."""
    text_bytes: int
    """Of UTF-8."""


class Source(NamedTuple):
    """Documents under a name."""

    name: str
    total_bytes: int
    """Of text, or of the files it is in."""
    documents: Iterator[Document]


class Window(NamedTuple):
    """Neighbouring tokens, of which the last ones are targets."""

    tokens: list[int]
    counted: int
    """The place of the first target; the tokens before it are context."""


def open_texts(path: str, tokenizer: Tokenizer, split: str, text_field: str = "text") -> Source:
    """What a path holds. Raises DataError where that is nothing, GenerateError where it is of another tokenizer."""
    if is_dataset(path):
        dataset = open_dataset(path, split)
        _check_tokenizer(dataset, tokenizer)
        return Source(path, dataset.manifest.splits[split].text_bytes, _of_shards(dataset, tokenizer))
    if not Path(path).exists():
        raise DataError("does not exist; give a shard folder, or files or a folder of text", path)
    (units,) = find_units([path], ReadOptions(text_field=text_field), UNIT_BYTES)
    texts = (text for unit in units for part in unit.read() for text in part.texts)
    documents = (Document(tokenizer.encode(text), len(text.encode())) for text in texts)
    return Source(path, sum(unit.size for unit in units), documents)


def _of_shards(dataset: TokenDataset, tokenizer: Tokenizer) -> Iterator[Document]:
    for index in range(dataset.documents):
        tokens = dataset.document(index)[:-1].tolist()
        yield Document(tokens, len(tokenizer.decode(tokens).encode()))


def _check_tokenizer(dataset: TokenDataset, tokenizer: Tokenizer) -> None:
    """The files of one tokenizer differ by format, so a sample of the text is read by both."""
    own = load_tokenizer(dataset.tokenizer_folder())
    text = own.decode(dataset.document(0)[:SAMPLE].tolist())
    if own.eod_id != tokenizer.eod_id or own.encode(text) != tokenizer.encode(text):
        raise GenerateError(
            f"{dataset.folder} was made with another tokenizer than the model's: its ids mean other texts; "
            "evaluate on the texts themselves, or prepare them with --tokenizer"
        )


def windows(pieces: Iterable[Sequence[int]], length: int, stride: int) -> Iterator[Window]:
    """A stream of tokens cut into windows of `length` inputs that begin every `stride` tokens.

    Every token but the very first is counted once: a window counts those that none before it has, so that each has at
    least length - stride tokens of context, or all there are.
    """
    held: list[int] = []
    counted = 1
    for piece in pieces:
        held += piece
        while len(held) > length + 1:
            yield Window(held[: length + 1], counted)
            counted = length + 1 - stride
            del held[:stride]
    if len(held) > counted:
        yield Window(held, counted)

"""Tokenizers and corpora whose every count can be worked out on paper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

# The rooms of the pipeline are imported where they are used, so that the tests of one do not need the others.
if TYPE_CHECKING:
    from data_pipeline.format.dataset import TokenDataset
    from data_pipeline.format.manifest import Manifest

EOD = 256


def byte_tokenizer(folder: Path, specials: Sequence[str] = ("<|endoftext|>",)) -> Path:
    """A token for each byte, with that byte as id; special tokens from 256 on."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(specials))
    return _save(tokenizer, folder)


def word_tokenizer(folder: Path, words: int, added: Iterable[str] = ("<|endoftext|>",)) -> Path:
    """A token for each of the words t0, t1, ..., then the added tokens."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({f"t{i}": i for i in range(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens(list(added))
    return _save(tokenizer, folder)


def _save(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_jsonl(path: Path, texts: Iterable[str]) -> str:
    path.write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    return str(path)


def build(*inputs: str, output: Path, tokenizer: Path | None, **options: object) -> Manifest:
    """Prepares without a validation split and in the order of the input unless told otherwise."""
    from data_pipeline.prepare.build import PrepareOptions, prepare
    from data_pipeline.prepare.progress import PrepareProgress

    chosen = {"validation_fraction": 0.0, "keep_order": True, **options}
    wanted = PrepareOptions(inputs=inputs, output=str(output), tokenizer=tokenizer and str(tokenizer), **chosen)  # type: ignore[arg-type]
    return prepare(wanted, PrepareProgress(quiet=True))


def texts_of(dataset: TokenDataset) -> list[bytes]:
    """The documents of the byte tokenizer, without their EOD, which must be there."""
    documents = [dataset.document(index).tolist() for index in range(dataset.documents)]
    assert all(ids[-1] == EOD for ids in documents)
    return [bytes(ids[:-1]) for ids in documents]


def texts_in(folder: Path, split: str = "train") -> list[bytes]:
    from data_pipeline.format.dataset import open_dataset

    return texts_of(open_dataset(folder, split))


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

"""The folder in a checkpoint that other programs load as it is (checkpoint.export: huggingface).

All ranks write it, from the tensors that they have just saved: each reads the whole tensors that it is to write, from
whoever's files, a piece at a time. So the engine is left alone, and what comes is what `megaxf convert` makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.tokenizer.base import load_tokenizer
from megaxf.checkpoint import files
from megaxf.checkpoint.files import Entry, Place, Stream
from megaxf.checkpoint.tensors import TensorFiles
from megaxf.checkpoint.weights import TENSORS, Part, masters
from megaxf.config import Run
from megaxf.convert import families
from megaxf.convert.huggingface import write_share
from megaxf.convert.interface import Trained
from megaxf.parallel.boxes import PARTS

if TYPE_CHECKING:
    from megaxf.checkpoint.saving import Export

FOLDER = "huggingface"


def check(run: Run[Any]) -> None:
    """Raises ConvertError before the first step where the run asks for an export and no architecture fits its model."""
    if run.checkpoint.export != "none":
        families.of(run.model).check(run.model)


def exporter(run: Run[Any], step: int, tokenizer: str | PathLike[str] | None) -> Export | None:
    """What writes the export of a step; None where its checkpoint has none. tokenizer: the folder of its files."""
    every = run.checkpoint.export_every
    if run.checkpoint.export == "none" or (every and step % every and step != run.train.steps):
        return None
    # Shards of elsewhere may have come without their tokenizer.
    folder = Path(tokenizer) if tokenizer is not None and Path(tokenizer).is_dir() else None

    def export(working: Place, rank: int, ranks: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}

        @contextmanager
        def create(name: str) -> Iterator[Stream]:
            with files.writing(working / FOLDER / name) as stream:
                yield stream
            entries[f"{FOLDER}/{name}"] = stream.entry()

        tensors = TensorFiles(working / TENSORS)
        weights = Part(tensors, masters(tensors), PARTS[0])
        eos_ids = [] if folder is None else [load_tokenizer(folder).eod_id]
        model = Trained(run.model, weights, folder, "bfloat16", eos_ids)
        write_share(model, create, rank, ranks)
        return entries

    return export

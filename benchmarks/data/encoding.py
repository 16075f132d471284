"""MB of text that a CPU turns into ids in a second: our bulk path with each backend, and the libraries' own calls.

    python benchmarks/data/encoding.py
    python benchmarks/data/encoding.py --megabytes 20 --rounds 7

Byte-level BPE and sentencepiece BPE of --vocab-size, trained on a part of the corpus (benchmarks/data/corpus.py). All
contenders of one tokenizer run in turn, on one thread, over the same documents in batches of 8 MB; opening the
tokenizer counts, and the clock is that of the process, so that other work on the machine does not. A ratio is one
of medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sentencepiece
import tokenizers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.corpus import write_corpus
from benchmarks.timing import alternate, median_ratio
from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.find import find_units
from data_pipeline.tokenizer.base import Backend, load_tokenizer
from data_pipeline.tokenizer.training import Kind, train_tokenizer

Encode = Callable[[list[str]], object]
KINDS: tuple[Kind, ...] = ("byte-bpe", "bpe")


def contenders(kind: Kind, folder: Path) -> dict[str, Callable[[], Encode]]:
    """Name -> what opens a tokenizer and gives the call that encodes a batch; the library's own comes first."""

    def own() -> Encode:
        if kind == "byte-bpe":
            return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch_fast
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return partial(model.encode, num_threads=1)

    def ours(backend: Backend) -> Encode:
        return load_tokenizer(folder, backend=backend).encode_documents

    name = "tokenizers.encode_batch_fast" if kind == "byte-bpe" else "sentencepiece.encode"
    return {name: own, "megaxf, reference": partial(ours, "reference"), "megaxf, gigatoken": partial(ours, "gigatoken")}


def measure(kind: Kind, folder: Path, batches: list[list[str]], rounds: int) -> None:
    """Prints a line for each contender."""
    size = sum(len(text.encode()) for batch in batches for text in batch) / 1e6

    def over_all(open_tokenizer: Callable[[], Encode]) -> None:
        # Opened for each round: the libraries remember words, and a second round over the same text would be too fast.
        encode = open_tokenizer()
        for batch in batches:
            encode(batch)

    steps = {name: partial(over_all, opens) for name, opens in contenders(kind, folder).items()}
    seconds = alternate(steps, rounds, warmup=1, clock=time.process_time)
    own = next(iter(seconds))
    for name, taken in seconds.items():
        rate = size / statistics.median(taken)
        print(f"{kind:9} {name:30} {rate:8.2f} MB per CPU-s   {median_ratio(taken, seconds[own]):6.2f} x {own}")


def main() -> None:
    """Makes the corpus and the tokenizers, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=10, help="text to encode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    arguments = parser.parse_args()
    # The library would use every core, and keeps to one thread only where it is told so before its first batch.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "corpus.jsonl")
        write_corpus(path, arguments.megabytes)
        [units] = find_units([str(path)], ReadOptions(), 1 << 30)
        batches = [texts.texts for unit in units for texts in unit.read()]
        for kind in KINDS:
            sample = [text[:100_000] for batch in batches for text in batch]
            train_tokenizer(kind, sample, Path(scratch, kind), arguments.vocab_size)
            measure(kind, Path(scratch, kind), batches, arguments.rounds)


if __name__ == "__main__":
    main()

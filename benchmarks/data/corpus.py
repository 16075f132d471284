"""Real text for benchmarks: the code and documentation that this machine has, as JSON lines.

python benchmarks/data/corpus.py corpus.jsonl --megabytes 400
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import orjson
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.files import search_folder
from data_pipeline.sources.text import ENDINGS, units

FOLDERS = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], "/usr/share")
_LONGEST = 4_000_000
"""Bytes of the largest file that is taken: one dictionary must not be the corpus."""


def write_corpus(path: Path, megabytes: float) -> int:
    """Writes about that many MB (of 10^6 bytes) of text, a file a line, in the field `text`; gives its bytes.

    The same machine gives the same lines, code and documentation mixed. A machine with less text gives what it has.
    """
    limit, done = int(megabytes * 1e6), 0
    with path.open("wb") as out:
        for text in _documents():
            out.write(orjson.dumps({"text": text}) + b"\n")
            done += len(text.encode())
            if done >= limit:
                break
    return done


def _documents() -> Iterator[str]:
    """Texts of more than white space, in the order of a hash of their paths."""
    found = {file.path: file for folder in FOLDERS for file in search_folder(folder, ReadOptions(), ENDINGS)}
    files = [file for file in found.values() if file.size <= _LONGEST]
    files.sort(key=lambda file: xxhash.xxh3_64_intdigest(file.path.encode()))
    for unit in units(files, ReadOptions(), 1 << 24):
        for texts in unit.read():
            yield from (text for text in texts.texts if text.strip())


def main() -> None:
    """Writes one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float, default=400)
    arguments = parser.parse_args()
    print(f"{write_corpus(arguments.path, arguments.megabytes) / 1e6:.1f} MB of text")


if __name__ == "__main__":
    main()

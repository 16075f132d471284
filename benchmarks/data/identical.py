"""Prepares this machine's code and documentation in every way there is, and compares the shards byte for byte.

    python benchmarks/data/identical.py --megabytes 300

The same documents as JSON lines, .zst, Parquet and a `datasets` folder, with 1, 2 and 4 processes, under mpirun and as
parts of an array job. Exits with 1 where a shard differs.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.corpus import write_corpus

MEGAXF = [sys.executable, "-m", "launch.megaxf"]
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2"]


def formats(folder: Path) -> dict[str, Path]:
    """The lines of corpus.jsonl in other formats."""
    import pyarrow
    import pyarrow.parquet
    import zstandard
    from datasets import Dataset

    lines = folder / "corpus.jsonl"
    compressed = folder / "corpus.jsonl.zst"
    with lines.open("rb") as read, compressed.open("wb") as write:
        zstandard.ZstdCompressor().copy_stream(read, write)
    texts = [orjson.loads(line)["text"] for line in lines.read_bytes().splitlines()]
    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.large_string())})
    pyarrow.parquet.write_table(table, folder / "corpus.parquet", row_group_size=2000)
    Dataset(table).save_to_disk(str(folder / "saved"))
    return {"jsonl": lines, "zst": compressed, "parquet": folder / "corpus.parquet", "datasets": folder / "saved"}


def run(before: list[str], source: Path, output: Path, *options: str) -> None:
    """One `megaxf prepare`."""
    command = [*before, *MEGAXF, "prepare", str(source), "--output", str(output), "--shard-tokens", "20000000"]
    command += ["--tokenizer", str(output.parent / "tokenizer"), "--json", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def digest(folder: Path) -> str:
    """Of all token ids and lengths with the names of their files."""
    hashed = hashlib.sha256()
    for path in sorted([*folder.rglob("*.bin"), *folder.rglob("*.len")]):
        hashed.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return hashed.hexdigest()


def parts(source: Path, output: Path) -> None:
    """Two parts of an array job at once."""
    command = [*MEGAXF, "prepare", str(source), "--output", str(output), "--shard-tokens", "20000000", "--json"]
    command += ["--tokenizer", str(output.parent / "tokenizer"), "--processes", "1"]
    both = [subprocess.Popen([*command, "--part", f"{k}/2"], stdout=subprocess.DEVNULL) for k in range(2)]
    if sum(process.wait() for process in both):
        raise SystemExit("a part failed")


def main() -> int:
    """Makes the inputs and the tokenizer, prepares, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        size = write_corpus(folder / "corpus.jsonl", arguments.megabytes) / 1e6
        training = ["--train-tokenizer", "byte-bpe", "--vocab-size", "32000", "--output", str(folder / "first")]
        subprocess.run([*MEGAXF, "prepare", str(folder / "corpus.jsonl"), *training], check=True)
        shutil.copytree(folder / "first/tokenizer", folder / "tokenizer")
        sources = formats(folder)
        lines = sources["jsonl"]
        ways = {f"{kind}, 1 process": ([], source, "--processes", "1") for kind, source in sources.items()}
        ways |= {f"jsonl, {count} processes": ([], lines, "--processes", str(count)) for count in (2, 4)}
        if shutil.which("mpirun"):
            ways["jsonl, mpirun -n 2"] = (MPIRUN, lines, "--processes", "1")
        found = {}
        for name, (before, source, *options) in ways.items():
            started = time.perf_counter()
            run(before, source, folder / "set", *options)
            found[name] = digest(folder / "set")
            shutil.rmtree(folder / "set")
            print(f"{name:22} {size:5.0f} MB {time.perf_counter() - started:6.1f} s  {found[name][:16]}", flush=True)
        parts(lines, folder / "set")
        found["jsonl, parts of 2"] = digest(folder / "set")
        print(f"{'jsonl, parts of 2':22} {size:5.0f} MB           {found['jsonl, parts of 2'][:16]}")
    same = len(set(found.values())) == 1
    print("all shards are equal" if same else "SHARDS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

"""JSONL to token shards, end to end, each contender a fresh process: us, Hugging Face `datasets.map`, datatrove.

    python benchmarks/data/prepare.py
    python benchmarks/data/prepare.py --megabytes 400 --reference-megabytes 20 --rounds 5 --peers peers/bin/python

Text is that of benchmarks/data/corpus.py, the tokenizer a byte-level BPE of --vocab-size trained on a part. What is
slow (reference tokenizers) gets --reference-megabytes, and gigatoken --megabytes too. Contenders run in turn; MB/s
are of wall-clock time with start-up, and MB per CPU-s of the time of all processes, which other work on the machine
does not lengthen. --peers names the Python of an environment with datatrove. The ratio is one of medians, CPU by CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.data.corpus import write_corpus
from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.find import find_units
from data_pipeline.tokenizer.sample import sample_documents
from data_pipeline.tokenizer.training import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36
"""Of Linux: the processes of a child that has ended become this process's children (prctl(2))."""

DATASETS_MAP = """
import sys
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer
corpus, tokenizer, output, processes = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer + "/tokenizer.json")
eod = tokenizer.token_to_id("<|endoftext|>")
def encode(batch):
    encoded = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
    return {"ids": [one.ids + [eod] for one in encoded]}
rows = load_dataset("json", data_files=corpus, split="train", cache_dir=output)
rows = rows.map(encode, batched=True, remove_columns=["text"], num_proc=int(processes) if processes != "1" else None)
rows.save_to_disk(output + "/set")
"""

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    corpus, tokenizer, output, processes = sys.argv[1:]
    folder, name = corpus.rsplit("/", 1)
    steps = [
        JsonlReader(folder, glob_pattern=name),
        DocumentTokenizer(output, tokenizer_name_or_path=tokenizer + "/tokenizer.json", eos_token="<|endoftext|>"),
    ]
    LocalPipelineExecutor(steps, tasks=int(processes), workers=int(processes), logging_dir=output + "/logs").run()
"""


def command(contender: str, corpus: Path, tokenizer: Path, output: Path, processes: int, peers: str) -> list[str]:
    """The command line of a contender."""
    places = [str(corpus), str(tokenizer), str(output), str(processes)]
    if contender == "datasets.map":
        return [sys.executable, "-c", DATASETS_MAP, *places]
    if contender == "datatrove":
        script = tokenizer / "datatrove_run.py"  # a file, since its workers are started from it
        script.write_text(DATATROVE)
        return [peers, str(script), *places]
    request = ["prepare", str(corpus), "--tokenizer", str(tokenizer), "--output", str(output), "--processes"]
    settings = ["--validation-fraction", "0", "--tokenizer-backend", contender.removeprefix("megaxf, ")]
    return [sys.executable, "-m", "launch.megaxf", *request, str(processes), *settings]


def run(arguments: list[str], output: Path) -> tuple[float, float]:
    """Wall-clock and CPU seconds of a command and its processes."""
    shutil.rmtree(output, ignore_errors=True)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - start
    with suppress(
        ChildProcessError
    ):  # What its processes leave behind is ours, see main, and counts once it has ended.
        while os.waitpid(-1, 0):
            pass
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:4])} failed:\n{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(contenders: dict[str, tuple[Path, float]], processes: int, rounds: int, scratch: Path, peers: str) -> None:
    """Prints a line for each contender; contenders: name -> its corpus and the MB of text in it."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name, (corpus, _) in contenders.items():
            output = scratch / "output"
            arguments = command(name, corpus, scratch / "tokenizer", output, processes, peers)
            seconds[name].append(run(arguments, output))
            print(f"round {number} of {rounds}, {name}: {seconds[name][-1][0]:.1f} s", file=sys.stderr)
    rates = {}
    for name, (_, size) in contenders.items():
        wall, cpu = (statistics.median(taken) for taken in zip(*seconds[name], strict=True))
        rates[name] = size / cpu
        ratio = rates[name] / rates["datasets.map"]
        print(
            f"{processes} process{'es' if processes > 1 else '  '} {name:20} {size:6.0f} MB {size / wall:8.2f} MB/s "
            f"{rates[name]:8.2f} MB per CPU-s {ratio:7.2f} x datasets.map",
            flush=True,
        )


def main() -> None:
    """Makes corpora and the tokenizer, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--reference-megabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peers", default="", metavar="PYTHON", help="Python of an environment with datatrove")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        small, large = scratch / "small.jsonl", scratch / "large.jsonl"
        small_size = write_corpus(small, arguments.reference_megabytes) / 1e6
        large_size = write_corpus(large, arguments.megabytes) / 1e6
        [units] = find_units([str(large)], ReadOptions(), 1 << 26)
        sample = sample_documents(units, 10_000_000, 0.0)
        (scratch / "tokenizer").mkdir()
        train_tokenizer("byte-bpe", sample, scratch / "tokenizer", arguments.vocab_size)
        contenders = {
            "datasets.map": (small, small_size),
            "megaxf, reference": (small, small_size),
            "megaxf, gigatoken": (large, large_size),
        }
        if arguments.peers:
            contenders["datatrove"] = (small, small_size)
        else:
            print("datatrove is not measured: --peers PYTHON names an environment that has it")
        for processes in arguments.processes:
            measure(contenders, processes, arguments.rounds, scratch, arguments.peers)


if __name__ == "__main__":
    main()

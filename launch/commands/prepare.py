"""`megaxf prepare`: text to token shards."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_pipeline.prepare.ranks import Ranks

HELP = "turn text, code, JSONL, Parquet or a Hugging Face data set into token shards"

DESCRIPTION = """\
Reads documents, turns them into tokens and writes a folder of token shards that `megaxf pretrain` reads.

Each INPUT is one of
  a folder          searched for text, code, JSONL and Parquet files (choose with --include and --exclude)
  a text file       one document
  *.jsonl[.gz|.zst] a document a line, in the field --text-field
  *.parquet         a document a row, in the column --text-field
  a Hugging Face data set: a folder made by save_to_disk, or a name on the hub

The tokenizer is one you have (--tokenizer), or one trained on a sample of the input (--train-tokenizer).
Some documents, chosen by a hash of their text, are held out for validation. The result depends on the input
and the options alone: not on --processes, not on the machine.

A run that is stopped, by whatever, goes on where it was when the same command is given again. Many machines that share
a file system build one data set together under mpirun, under srun, or as an array job with --part.
"""

EXAMPLES = """\
examples:
  a code model's data from the Python source on this machine, with a tokenizer of its own
    megaxf prepare /usr/lib/python3.11 --include '*.py' --exclude test site-packages \\
        --train-tokenizer bpe --vocab-size 4096 --on-error skip --output data/python

  web text with the tokenizer of a published model
    megaxf prepare crawl/*.jsonl.zst --tokenizer Llama-3/tokenizer.json --output data/web --processes 64

  the same on 64 machines, with all cores of each; or as an array job of 64
    mpirun -n 64 --map-by node megaxf prepare crawl/*.jsonl.zst --tokenizer Llama-3/tokenizer.json --output data/web
    megaxf prepare crawl/*.jsonl.zst --tokenizer Llama-3/tokenizer.json --output data/web --part 7/64

  several crawls without the documents that they share, bad records left out and listed in data/web/errors.jsonl
    megaxf prepare crawl-1/ crawl-2/ --tokenizer Llama-3 --deduplicate --on-error skip --output data/web

  a second source in the same vocabulary, to be mixed with the first (data.sources of a run)
    megaxf prepare wiki.parquet --tokenizer data/web/tokenizer --output data/wiki
"""

_READ = ("text_field", "split", "config", "streaming", "min_characters", "max_characters")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EXAMPLES
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="folder, file or data set name; see above")
    parser.add_argument("--output", required=True, metavar="DIR", help="the shard folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace a shard folder that is already there")
    parser.add_argument("--name", default="", help="title of the data set in its manifest (default: the folder's name)")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON on standard output, nothing else"
    )
    _add_tokenizer_arguments(parser.add_argument_group("tokenizer (one of the first two)"))
    _add_input_arguments(parser.add_argument_group("reading"))
    _add_output_arguments(parser.add_argument_group("writing"))


def run(arguments: argparse.Namespace) -> int:
    """Builds the shards and prints the summary."""
    from data_pipeline.format.report import show
    from data_pipeline.prepare.build import prepare
    from data_pipeline.prepare.options import PrepareOptions
    from data_pipeline.prepare.progress import PrepareProgress
    from data_pipeline.sources.base import ReadOptions

    ranks, processes = _ranks(arguments.part)
    values = vars(arguments) | {"processes": processes if arguments.processes is None else arguments.processes}
    read = {name: values[name] for name in _READ}
    names = PrepareOptions.__dataclass_fields__.keys() & values.keys() - {"inputs"}
    options = PrepareOptions(
        inputs=tuple(arguments.inputs),
        read=ReadOptions(include=tuple(arguments.include), exclude=tuple(arguments.exclude), **read),
        **{name: values[name] for name in names},
    )
    manifest = prepare(options, PrepareProgress(quiet=arguments.json or not ranks.leads), ranks)
    if manifest:
        show(arguments.output, manifest, arguments.json)
    return 0


def _ranks(part: str | None) -> tuple[Ranks, int]:
    """Who this is of how many builders, and the processes for it: its share of the cores that this job may use."""
    from data_pipeline.errors import DataError
    from data_pipeline.prepare.ranks import Ranks, mpi_ranks, part_of
    from launch.rendezvous import detect

    launch = detect()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if part and launch.world_size > 1:
        raise DataError(f"--part {part} is for array jobs, but {launch.launcher} started this one; leave --part out")
    if part:
        return part_of(part), cores
    if launch.world_size == 1:
        return Ranks(), cores
    # Launchers mostly give each rank cores of its own; where they do not, the ranks of a host share them.
    share = cores if cores < (os.cpu_count() or 1) else max(1, cores // launch.local_world_size)
    if launch.launcher == "mpirun":
        return mpi_ranks(launch.world_size), share
    return Ranks(launch.rank, launch.world_size, "rank"), share


def _add_tokenizer_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer", metavar="PATH", help="sentencepiece .model, tokenizer.json, or a folder with one")
    group.add_argument(
        "--train-tokenizer",
        choices=("bpe", "unigram", "byte-bpe"),
        help="train one that loses nothing of the text: sentencepiece BPE or unigram (some 20 times as long), or "
        "byte-level BPE as Llama 3 and GPT-4 use it",
    )
    group.add_argument(
        "--vocab-size", type=int, metavar="N", help="tokens of the tokenizer to train, e.g. 4096 or 32000"
    )
    group.add_argument(
        "--tokenizer-sample-bytes",
        type=int,
        default=10_000_000,
        metavar="N",
        help="text to train it on, taken from training documents by their hash (default: %(default)s)",
    )
    group.add_argument(
        "--tokenizer-backend",
        choices=("auto", "reference", "gigatoken"),
        default="auto",
        help="what encodes: gigatoken is many times as fast and compared with the reference library before and during "
        "the run; auto takes it where it is installed and gives the same ids (default: auto)",
    )
    group.add_argument("--eod-token", metavar="TOKEN", help="end-of-document token, where --tokenizer does not tell it")
    group.add_argument("--add-bos", action="store_true", help="begin each document with the tokenizer's BOS token")


def _add_input_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--text-field",
        default="text",
        metavar="NAME",
        help="JSON field or column, or a path to one: message.text (default: text)",
    )
    group.add_argument(
        "--include", nargs="+", default=(), metavar="GLOB", help="files of a folder to take, e.g. '*.py'"
    )
    group.add_argument("--exclude", nargs="+", default=(), metavar="GLOB", help="files and subfolders to leave out")
    group.add_argument("--split", metavar="NAME", help="split of a Hugging Face data set (default: train)")
    group.add_argument("--config", metavar="NAME", help="configuration of a Hugging Face data set of the hub")
    group.add_argument(
        "--streaming", action="store_true", help="INPUTs are names on the hub, read without downloading them first"
    )
    group.add_argument(
        "--min-characters", type=int, default=0, metavar="N", help="leave out shorter documents, and count them"
    )
    group.add_argument("--max-characters", type=int, metavar="N", help="leave out longer documents, and count them")
    group.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at a bad record (broken JSON or UTF-8, no text): stop and name it, or leave it out and count it "
        "(default: stop)",
    )


def _add_output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--deduplicate",
        action="store_true",
        help="leave out documents whose text an earlier one of any INPUT has, to the byte",
    )
    group.add_argument(
        "--keep-order",
        action="store_true",
        help="write documents in the order of the INPUTs (default: shuffled over all shards, always in the same way)",
    )
    group.add_argument(
        "--validation-fraction",
        type=float,
        default=0.01,
        metavar="F",
        help="share of the documents held out; 0 for none (default: %(default)s)",
    )
    group.add_argument(
        "--shard-tokens",
        type=int,
        default=100_000_000,
        metavar="N",
        help="about so many tokens in a shard (default: %(default)s)",
    )
    group.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="processes that tokenise (default: the cores that this job may use)",
    )
    group.add_argument(
        "--part",
        metavar="K/N",
        help="part K, from 0, of an array job of N that build one data set on a shared file system; part 0 finishes it",
    )
    group.add_argument(
        "--unit-bytes",
        type=int,
        metavar="N",
        help="input that is encoded in one go, and done again after a kill (default: by the size of the input, "
        "8 to 512 MiB)",
    )

"""`megaxf prepare`: text to token shards."""

from __future__ import annotations

import argparse
import os

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
"""

EXAMPLES = """\
examples:
  a code model's data from the Python source on this machine, with a tokenizer of its own
    megaxf prepare /usr/lib/python3.11 --include '*.py' --exclude test site-packages \\
        --train-tokenizer bpe --vocab-size 4096 --on-error skip --output data/python

  web text with the tokenizer of a published model
    megaxf prepare crawl/*.jsonl.zst --tokenizer Llama-3/tokenizer.json --output data/web --processes 64

  a second source in the same vocabulary, to be mixed with the first (data.sources of a run)
    megaxf prepare wiki.parquet --tokenizer data/web/tokenizer --output data/wiki
"""


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
    import json

    from rich.console import Console

    from data_pipeline.format.report import print_manifest, summary
    from data_pipeline.prepare.build import PrepareOptions, prepare
    from data_pipeline.prepare.progress import PrepareProgress
    from data_pipeline.sources.base import ReadOptions

    values = vars(arguments)
    read = {name: values[name] for name in ("text_field", "split", "config")}
    names = PrepareOptions.__dataclass_fields__.keys() & values.keys() - {"inputs"}
    options = PrepareOptions(
        inputs=tuple(arguments.inputs),
        read=ReadOptions(include=tuple(arguments.include), exclude=tuple(arguments.exclude), **read),
        **{name: values[name] for name in names},
    )
    manifest = prepare(options, PrepareProgress(quiet=arguments.json))
    if arguments.json:
        print(json.dumps(summary(arguments.output, manifest), indent=1))
    else:
        print_manifest(arguments.output, manifest, Console())
    return 0


def _cores() -> int:
    """The cores that this process may use, where the system tells them (a job on a cluster has fewer than the node)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _add_tokenizer_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer", metavar="PATH", help="sentencepiece .model, tokenizer.json, or a folder with one")
    group.add_argument(
        "--train-tokenizer",
        choices=("bpe", "unigram"),
        help="train a sentencepiece tokenizer; it loses nothing of the text (unigram takes some 20 times as long)",
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
    group.add_argument("--eod-token", metavar="TOKEN", help="end-of-document token, where --tokenizer does not tell it")
    group.add_argument("--add-bos", action="store_true", help="begin each document with the tokenizer's BOS token")


def _add_input_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--text-field", default="text", metavar="NAME", help="JSON field or column (default: text)")
    group.add_argument(
        "--include", nargs="+", default=(), metavar="GLOB", help="files of a folder to take, e.g. '*.py'"
    )
    group.add_argument("--exclude", nargs="+", default=(), metavar="GLOB", help="files and subfolders to leave out")
    group.add_argument("--split", metavar="NAME", help="split of a Hugging Face data set (default: train)")
    group.add_argument("--config", metavar="NAME", help="configuration of a Hugging Face data set of the hub")
    group.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="at a bad record (broken JSON or UTF-8, no text): stop and name it, or leave it out and count it "
        "(default: stop)",
    )


def _add_output_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--validation-fraction",
        type=float,
        default=0.01,
        metavar="F",
        help="share of the documents held out; 0 for none (default: %(default)s)",
    )
    group.add_argument(
        "--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens in a shard (default: %(default)s)"
    )
    group.add_argument(
        "--processes",
        type=int,
        default=_cores(),
        metavar="N",
        help="processes that tokenise (default: the cores of this machine, %(default)s)",
    )

"""`megaxf data import`: token files of other libraries. Arguments only; the work is in data_pipeline.format.imports."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "make a shard folder of the token files of other libraries, without tokenising again"

EPILOG = """\
INPUT is a file or a folder, which is searched:
  megatron    Megatron-LM: .bin with .idx; name either, or what both begin with
  datatrove   .ds with .ds.index; --dtype uint16 or uint32 where no .ds.metadata tells it
  mds         MosaicML streaming: a folder with index.json; --column where the ids are not in `tokens` or `input_ids`
  arrays      one stream of ids: .npy, or any file without a header, for which --format and --dtype are needed

Every id is checked against the vocabulary of the tokenizer that made them. Documents that lack the end-of-document
token get it, and the manifest says how many did. Where the files hold rows of one stream instead of documents, say
--documents eod: then documents are what lies between end-of-document tokens.

examples:
  megaxf data import corpus_text_document.idx --tokenizer tokenizer.json --output tokens/
  megaxf data import datatrove-out/ --tokenizer tokenizer.json --eod-token '<|end_of_text|>' --output tokens/
  megaxf data import train.bin --validation val.bin --format arrays --dtype uint16 --tokenizer gpt2/ --output tokens/
  megaxf data import mds/train --documents eod --tokenizer tokenizer.json --output tokens/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = EPILOG
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files or folders, for the train split")
    parser.add_argument(
        "--validation", nargs="+", default=[], metavar="INPUT", help="the same for the validation split"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the shard folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace a shard folder that is already there")
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="the tokenizer that made the ids")
    parser.add_argument(
        "--eod-token", metavar="TOKEN", help="end-of-document token, where --tokenizer does not tell it"
    )
    parser.add_argument("--format", metavar="NAME", help="one of those above (default: by the names of the files)")
    parser.add_argument("--dtype", metavar="TYPE", help="type of the ids where the files do not tell it, e.g. uint16")
    parser.add_argument("--column", metavar="NAME", help="of MDS, the column with the ids")
    parser.add_argument(
        "--documents",
        choices=("file", "eod"),
        default="file",
        help="documents are what the files say, or what lies between end-of-document tokens (default: file)",
    )
    parser.add_argument("--name", default="", help="title in the manifest (default: the folder's name)")
    parser.add_argument(
        "--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens in a shard (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Imports and prints what the new folder holds."""
    from data_pipeline.errors import DataError
    from data_pipeline.format.foreign.find import Options
    from data_pipeline.format.imports import Import
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.format.report import show
    from data_pipeline.format.writer import DatasetWriter
    from data_pipeline.tokenizer.base import load_tokenizer

    if arguments.shard_tokens < 1:
        raise DataError(f"--shard-tokens {arguments.shard_tokens} is not at least 1")
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.eod_token)
    options = Options(tokenizer.eod_id, arguments.dtype, arguments.column, arguments.documents == "eod")
    inputs = {"train": arguments.inputs, "validation": arguments.validation}
    job = Import(inputs, options, arguments.format)
    shape: dict[str, Any] = {name: getattr(tokenizer, name) for name in ("vocab_size", "eod_id", "bos_id")}
    with (
        DatasetWriter(
            arguments.output, **shape, shard_tokens=arguments.shard_tokens, overwrite=arguments.overwrite
        ) as writer,
        bytes_progress("importing", job.size, quiet=arguments.json) as advance,
    ):
        manifest = job.run(writer, tokenizer, arguments.name, advance)
    show(arguments.output, manifest, arguments.json)
    return 0

"""`megaxf evaluate`: how well does a model predict these texts?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from launch.model_options import SOURCE, add_model_options

if TYPE_CHECKING:
    from megaxf.convert.interface import Trained
    from megaxf.generate.evaluate import Score

HELP = "loss, perplexity and bits per byte of a model on texts; or tasks of lm-eval"

USUAL = 4096
"""Tokens of a window where nobody says: longer ones take much memory."""

EPILOG = f"""\
{SOURCE}
DATA is a shard folder of `megaxf prepare`, or a file or folder of text, JSONL or Parquet.

  megaxf evaluate runs/mine tokens/                       its validation split, document by document
  megaxf evaluate runs/mine tokens/ --packed              as the validation loss of training
  megaxf evaluate my-model notes/ code.jsonl --json       each by itself, and all together
  megaxf evaluate my-model book.txt --sequence-length 2048 --stride 512
  megaxf evaluate my-model --harness hellaswag,arc_easy   pip install 'megaxf[harness]'

--stride S: of a long text each token is predicted from at least sequence-length - S tokens before it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the texts, and the context rule."""
    parser.epilog = EPILOG
    add_model_options(parser)
    parser.add_argument("data", nargs="*", metavar="DATA", help="texts; see below")
    parser.add_argument("--split", default="validation", help="of shard folders (default: %(default)s)")
    parser.add_argument("--text-field", default="text", metavar="NAME", help="of JSONL and Parquet (default: text)")
    parser.add_argument("--packed", action="store_true", help="all documents in a row, as in training")
    parser.add_argument(
        "--sequence-length", type=int, metavar="N", help=f"tokens of a window (default: the model's, at most {USUAL:,})"
    )
    parser.add_argument(
        "--stride", type=int, metavar="N", help="from window to window (default: half a window; packed: a whole one)"
    )
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="windows at a time (default: 8)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first documents (harness: examples) of each")
    parser.add_argument("--harness", metavar="TASKS", help="names of the lm-evaluation-harness, with commas between")
    parser.add_argument("--harness-include", metavar="FOLDER", help="YAML files of further tasks")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and print."""
    from megaxf.generate import GenerateError

    if bool(arguments.data) == bool(arguments.harness):
        raise GenerateError("give either DATA to be predicted or --harness TASKS")
    if arguments.harness_include and not arguments.harness:
        raise GenerateError("--harness-include has an effect with --harness only")
    return _harness(arguments) if arguments.harness else _texts(arguments)


def _texts(arguments: argparse.Namespace) -> int:
    from data_pipeline.format.progress import bytes_progress
    from data_pipeline.tokenizer.base import load_tokenizer
    from launch.model_options import open_model, opening_of
    from megaxf.generate import GenerateError
    from megaxf.generate.evaluate import Rule, evaluate, total
    from megaxf.generate.texts import open_texts
    from megaxf.train.trained import open_source

    source = open_source(arguments.source)
    if source.tokenizer is None:
        raise GenerateError(f"{source.path} has no tokenizer: texts cannot be read")
    tokenizer = load_tokenizer(source.tokenizer)
    length = arguments.sequence_length
    if length is None:
        length = min(source.config.max_position_embeddings, USUAL)
    rule = Rule(length, arguments.stride, arguments.packed)
    texts = [open_texts(path, tokenizer, arguments.split, arguments.text_field) for path in arguments.data]
    model = open_model(arguments, source)
    scores = []
    for text in texts:
        size = None if arguments.limit else text.total_bytes
        with bytes_progress(text.name, size, quiet=arguments.json) as told:
            options = {"batch_size": arguments.batch_size, "limit": arguments.limit, "told": told}
            options["opening"] = opening_of(source)
            scores.append(evaluate(model, text, tokenizer.eod_id, rule, **options))
    _print(source, [*scores, *([total(scores)] if len(scores) > 1 else [])], str(rule), arguments.json)
    return 0


def _print(source: Trained, scores: list[Score], rule: str, as_json: bool) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    if as_json:
        found = {"model": str(source.path), "context": rule, "scores": [score.as_dict() for score in scores]}
        print(json.dumps(found, indent=1))
        return
    table = Table("source", *("loss", "perplexity", "bits/byte", "tokens", "documents", "tokens/s"), box=None)
    for score in scores:
        figures = f"{score.loss:.4f} {score.perplexity:.4g} {score.bits_per_byte:.4f} {score.tokens:,} "
        figures += f"{score.documents:,} {score.tokens / max(score.seconds, 1e-9):,.0f}"
        table.add_row(score.source, *figures.split())
    for column in table.columns[1:]:
        column.justify = "right"
    console = Console(highlight=False)
    console.print(table)
    console.print(f"loss in nats a token; {rule}", style="dim")


def _harness(arguments: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from launch.model_options import check_device
    from megaxf.generate import GenerateError
    from megaxf.generate.harness import run_tasks
    from megaxf.train.trained import open_source

    source = open_source(arguments.source)
    if source.format != "huggingface":
        raise GenerateError(f"{source.path} is no Hugging Face folder, which --harness needs; use megaxf convert first")
    include = Path(arguments.harness_include) if arguments.harness_include else None
    found: dict[str, dict[str, Any]] = run_tasks(
        Path(str(source.path)), arguments.harness.split(","), include=include, batch_size=arguments.batch_size,
        limit=arguments.limit, dtype=arguments.dtype, device=check_device(arguments.device),
    )  # fmt: skip
    if arguments.json:
        print(json.dumps({"model": str(source.path), "tasks": found}, indent=1, default=str))
        return 0
    for task, metrics in found.items():
        for name, value in metrics.items():
            if isinstance(value, float):
                print(f"{task:<24} {name.removesuffix(',none'):<20} {value:.4f}")
    return 0

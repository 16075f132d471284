"""`megaxf convert`: a trained model to Hugging Face's files, and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.convert.interface import Trained

HELP = "turn a checkpoint into a Hugging Face folder, or such a folder into a checkpoint"

EPILOG = """\
SOURCE is a run folder (its newest complete checkpoint is taken), a checkpoint, or a Hugging Face folder.

  megaxf convert runs/mine my-model                    for transformers, vLLM and others
  megaxf convert runs/mine/checkpoints/step-00001000 my-model --dtype float32 --max-shard-size 2GB
  megaxf convert Llama-3.2-1B runs/continued --to megaxf
                                                       a run folder that starts from these weights
Every tensor of both sides is used once, or nothing is written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, destination and form of the output."""
    parser.epilog = EPILOG
    parser.add_argument("source", metavar="SOURCE", help="what to convert; see below")
    parser.add_argument("destination", metavar="DEST", help="the folder to make")
    parser.add_argument("--to", choices=("huggingface", "megaxf"), default="huggingface", help="default: huggingface")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="of the exported weights; by default what the model was trained in",
    )
    parser.add_argument(
        "--max-shard-size",
        type=parse_size,
        metavar="SIZE",
        help="bytes in one file, as 5GB or 500MB (default: 5GB)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier output as a whole")


def run(arguments: argparse.Namespace) -> int:
    """Convert and say what was written."""
    from time import monotonic

    from data_pipeline.format.report import megabytes
    from megaxf.train.trained import open_source

    model = open_source(arguments.source)
    began = monotonic()
    convert = _to_megaxf if arguments.to == "megaxf" else _to_format
    size, written, advice = convert(model, arguments)
    seconds = max(monotonic() - began, 1e-3)
    parameters = sum(shape.numel() for shape in model.weights.shapes.values())
    print(f"{model.path} -> {written}")
    print(f"{len(model.weights.shapes)} tensors, {parameters:,} parameters, {megabytes(size)} in {seconds:.1f} s")
    if model.tokenizer is None:
        print("without a tokenizer: the source has none")
    print(advice)
    return 0


def _to_format(model: Trained, arguments: argparse.Namespace) -> tuple[int, Path, str]:
    from megaxf.convert.interface import Form
    from megaxf.convert.registry import format_named

    out = Path(arguments.destination)
    form = Form(arguments.dtype, arguments.max_shard_size, arguments.overwrite)
    size = format_named(arguments.to).write(model, out, form)
    return size, out, f"try it: megaxf generate {out} --prompt 'def f('"


def _to_megaxf(model: Trained, arguments: argparse.Namespace) -> tuple[int, Path, str]:
    from tempfile import TemporaryDirectory

    import yaml

    from data_pipeline.tokenizer.base import load_tokenizer
    from megaxf.checkpoint import save_weights
    from megaxf.convert.errors import ConvertError
    from megaxf.convert.folders import new_folder

    if arguments.dtype:
        raise ConvertError("--dtype has no effect with --to megaxf: a checkpoint holds fp32; remove it")
    out = Path(arguments.destination)
    if (out / "metrics.jsonl").exists():
        raise ConvertError(f"{out} is a run that has trained; choose another name, or remove it yourself")
    config = yaml.safe_dump({"model": model.config.model_dump()}, sort_keys=False)
    # What a run reads of its past: no data so far, and weights that lose nothing in this precision.
    extra = {"samples": 0, "tokens": 0, "data": None, "dtype": model.dtype, "eos_ids": model.eos_ids}
    shapes, read = model.weights.shapes, model.weights.__getitem__
    with new_folder(out, overwrite=arguments.overwrite, mark="checkpoints") as folder, TemporaryDirectory() as spare:
        if model.tokenizer:
            load_tokenizer(model.tokenizer).save(spare)
        tokenizer = spare if model.tokenizer else None
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        path = save_weights(folder / "checkpoints", shapes, read, extra, config=config, tokenizer=tokenizer)
    size = 4 * sum(shape.numel() for shape in shapes.values())
    advice = f"train on: a run with run_folder: {out} and this model starts from these weights"
    return size, out / "checkpoints" / path.name, advice


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `200MB`, `64KB` or a plain number. Raises argparse.ArgumentTypeError."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    number, unit = (text[:-2], units[text[-2:].upper()]) if text[-2:].upper() in units else (text, 1)
    try:
        size = round(float(number) * unit)
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 5GB, 500MB, 64KB or a number of bytes")
    return size

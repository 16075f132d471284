"""`megaxf convert`: a trained model to other programs' files, and back."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from megaxf.convert.registry import TARGETS

if TYPE_CHECKING:
    from megaxf.convert.interface import Form, Trained, Written
    from megaxf.convert.verify import Difference

BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "q8_0": 34 / 32}
"""What an element takes in each dtype."""

HELP = "turn a checkpoint into files of other programs, or such files into a checkpoint"

EPILOG = """\
SOURCE is a run folder (its newest complete checkpoint is taken), a checkpoint, a GGUF file, or a folder of
Hugging Face, DeepSpeed (ZeRO 1 to 3, universal) or Megatron-LM (torch, torch_dist); its files tell which.

  megaxf convert runs/mine my-model                    for transformers, vLLM and others
  megaxf convert runs/mine my-model --verify           and compare its logits with the source's
  megaxf convert runs/mine/checkpoints/step-00001000 my-model --dtype float32 --max-shard-size 2GB
  megaxf convert runs/mine my-model.gguf --dtype q8_0  for llama.cpp and what is built on it
  megaxf convert Llama-3.2-1B as-checkpoint --to megaxf
                                                       a checkpoint; to train on, see init.from of pretrain
  megaxf convert runs/mine for-deepspeed --to deepspeed
                                                       universal, with AdamW's state
  megaxf convert runs/mine for-megatron --to megatron --tensor-parallel-size 2
                                                       a file for each rank, as Megatron-LM reads it (torch)
  megaxf convert runs/mine for-megatron --to megatron_dist
                                                       torch_dist, which any number of its ranks reads
Every tensor of both sides is used once, or nothing is written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, destination and form of the output."""
    parser.epilog = EPILOG
    parser.add_argument("source", metavar="SOURCE", help="what to convert; see below")
    parser.add_argument("destination", metavar="DEST", help="the folder or file to make")
    parser.add_argument(
        "--to",
        choices=(*TARGETS, "megaxf"),
        help="the format to write (default: gguf where DEST ends so, else huggingface)",
    )
    parser.add_argument(
        "--dtype",
        choices=tuple(BYTES),
        help="of the written weights; by default what the model was trained in. q8_0 (8 bits and a scale for 32): gguf",
    )
    parser.add_argument(
        "--max-shard-size",
        type=parse_size,
        metavar="SIZE",
        help="bytes in one file of a Hugging Face folder, as 5GB or 500MB (default: 5GB)",
    )
    for axis, shared in (("tensor", "each matrix"), ("pipeline", "the layers")):
        parser.add_argument(
            f"--{axis}-parallel-size",
            type=int,
            metavar="N",
            help=f"ranks that share {shared}, each with a file of its own: megatron (default: 1)",
        )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier output as a whole")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read the output back and compare logits on random tokens, both sides in fp32, one after the other in "
        "memory; a Hugging Face folder is opened by transformers where that is installed. Where they differ, nothing "
        "is left, and of --overwrite the earlier output",
    )
    parser.add_argument("--json", action="store_true", help="say what was written as JSON, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Convert and say what was written."""
    from time import monotonic

    from data_pipeline.format.progress import bytes_progress
    from launch.signals import leaving
    from megaxf.convert.interface import Form, refuse_options
    from megaxf.train.trained import open_source

    out = Path(arguments.destination)
    to = arguments.to or ("gguf" if out.suffix == ".gguf" else "huggingface")
    model = open_source(arguments.source)
    dtype = "float32" if to in ("megaxf", "deepspeed") else arguments.dtype or model.dtype
    began, ended, found = monotonic(), 0.0, None

    def inspect(made: Path) -> None:
        nonlocal ended, found
        ended = monotonic()
        found = _verify(model, to, made, dtype) if arguments.verify else None

    size = round(BYTES[dtype] * _parameters(model))
    with leaving(), bytes_progress(out.name, size, quiet=arguments.json) as advance:
        form = Form(
            arguments.dtype,
            arguments.max_shard_size,
            arguments.overwrite,
            lambda count: advance(round(BYTES[dtype] * count)),
            inspect,
            arguments.tensor_parallel_size,
            arguments.pipeline_parallel_size,
        )
        if to != "megatron":
            refuse_options(form, to, "its files are not a rank's", "tensor_parallel_size", "pipeline_parallel_size")
        written = _writer(to)(model, out, form)
    _report(model, out, written, max(ended - began, 1e-3), found, arguments.json)
    return 0


def _parameters(model: Trained) -> int:
    return sum(shape.numel() for shape in model.weights.shapes.values())


def _writer(to: str) -> Callable[[Trained, Path, Form], Written]:
    if to == "megaxf":
        from megaxf.train.as_checkpoint import write

        return write
    from megaxf.convert.registry import format_named

    writer: Callable[[Trained, Path, Form], Written] = format_named(to).write
    return writer


def _verify(model: Trained, to: str, made: Path, dtype: str) -> Difference:
    from megaxf.convert.registry import format_named
    from megaxf.convert.verify import compare
    from megaxf.train.trained import open_source

    if to == "megaxf":
        return compare(model, open_source(made), lambda name, tensor: tensor)
    target = format_named(to)
    return compare(model, target.reopen(model, made), lambda name, tensor: target.rounded(name, tensor, dtype))


def _report(
    model: Trained, out: Path, written: Written, seconds: float, difference: Difference | None, as_json: bool
) -> None:
    import json

    from data_pipeline.format.report import megabytes

    tensors, parameters = len(model.weights), _parameters(model)
    facts = {"source": str(model.path), "destination": str(out), "tensors": tensors, "parameters": parameters}
    facts |= {"bytes": written.size, "dtype": written.dtype, "seconds": round(seconds, 3), "notes": written.notes}
    if difference:
        facts["verified"] = difference._asdict()
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{model.path} -> {out}")
    print(
        f"{tensors} tensors, {parameters:,} parameters, {megabytes(written.size)} of {written.dtype} in {seconds:.1f} s"
    )
    if difference:
        print(
            f"verified with {difference.other} on {difference.tokens} random tokens: logits of up to "
            f"{difference.largest_logit:.3g} differ by at most {difference.everywhere:.2g}, in the last quarter by "
            f"{difference.late:.2g}"
        )
    if model.tokenizer is None:
        print("without a tokenizer: the source has none")
    for note in written.notes:
        print(note)


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

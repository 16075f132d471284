"""How commands that use a model take it: where it is, in which precision, on which devices."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megaxf.convert.interface import Trained
    from megaxf.parallel.mesh import Axis

SOURCE = """\
SOURCE is a run folder (its newest complete checkpoint is taken), a checkpoint, a Hugging Face folder, or whatever else
megaxf convert reads, such as a GGUF file."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Source, precision, devices."""
    parser.add_argument("source", metavar="SOURCE", help="the model; see below")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: float32 on a CPU, else as trained")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument(
        "--device-map",
        choices=("auto",),
        help="for a model that is too large: over all GPUs, the host's memory, and the disk",
    )
    parser.add_argument(
        "--max-memory",
        action="append",
        default=[],
        metavar="WHERE=SIZE",
        help="with --device-map: at most so much of GPU 0, 1, ... or cpu, as 0=20GB or cpu=64GB",
    )


def open_model(
    arguments: argparse.Namespace,
    source: Trained,
    device: Any = None,
    axis: Axis | None = None,
    *,
    one_row: bool = False,
) -> Any:
    """The model of a source, ready to compute.

    device, axis: of this rank, where several hold the model together. one_row: see loading.load.
    """
    import torch

    from megaxf.generate import GenerateError, loading

    if arguments.max_memory and not arguments.device_map:
        raise GenerateError("--max-memory has an effect with --device-map auto only")
    for other, given in (("--device", arguments.device), ("torchrun, srun or mpirun", axis)):
        if arguments.device_map and given:
            raise GenerateError(f"--device-map spreads the model by itself; use either it or {other}")
    limits = dict(map(_limit, arguments.max_memory))
    device = device or check_device(arguments.device) or ("cuda" if torch.cuda.is_available() else "cpu")
    name = arguments.dtype or ("float32" if torch.device(device).type == "cpu" else source.dtype)
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]
    if arguments.device_map:
        return loading.spread(source.config, source.weights, dtype, limits or None)
    return loading.load(source.config, source.weights, dtype, device, axis, one_row=one_row)


def opening_of(source: Trained) -> int | None:
    """The token that texts begin with by the rule of the tokenizer, where the model is not one of megaxf's training."""
    from data_pipeline.tokenizer.opening import opening_id

    return opening_id(source.tokenizer) if source.tokenizer and source.format in ("huggingface", "gguf") else None


def check_device(name: str | None) -> str | None:
    """The device that is asked for, if one is. Raises GenerateError where nothing can be computed on it."""
    import torch

    from megaxf.generate import GenerateError

    try:
        if name is not None:
            torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        reason = str(error).splitlines()[0]
        raise GenerateError(f"--device {name} cannot be used here: {reason}; use cpu, or another GPU's name") from None
    return name


def _limit(text: str) -> tuple[int | str, int]:
    from launch.commands.convert import parse_size
    from megaxf.generate import GenerateError

    place, _, size = text.partition("=")
    if not (place == "cpu" or place.isdecimal()):
        raise GenerateError(f"--max-memory {text}: write GPU=SIZE or cpu=SIZE, as 0=20GB or cpu=64GB")
    try:
        return (place if place == "cpu" else int(place)), parse_size(size)
    except argparse.ArgumentTypeError as error:
        raise GenerateError(f"--max-memory {text}: {error}") from None

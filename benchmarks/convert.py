"""How much memory does a conversion take, and how fast is it beside a plain copy of the files that it reads?

    python benchmarks/convert.py --layers 2                      widths of Llama 2 70B, two of its layers: 14 GB of disk
    python benchmarks/convert.py --layers 80                     all of it: 415 GB of disk
    python benchmarks/convert.py --layers 2 --to gguf --dtype q8_0

Memory does not depend on the number of layers: at most a piece of a tensor is held. A checkpoint with tensors of one
value each is written first. Each conversion and each copy has a process of its own, in turn, and reads from the disk,
as of files that are larger than the memory; the best of each counts. Seconds of the CPU are printed beside the clock's,
which other work on the machine lengthens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import yaml

from megaxf.checkpoint import resolve, save_weights
from megaxf.convert.interface import Form
from megaxf.convert.names import parameter_shapes
from megaxf.convert.registry import format_named
from megaxf.models.llama_config import Config
from megaxf.train.trained import open_source

MODELS = Path(__file__).parents[1] / "configs/models"


class Cost(NamedTuple):
    """What one run took."""

    seconds: float
    cpu_seconds: float
    peak: int
    """Bytes of the largest resident set."""


def measured(work: Callable[[], object]) -> Cost:
    """Run in this process, which is used for nothing else."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    # Not getrusage's, which begins at what the parent had when it started this process.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return Cost(*seconds, int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024)


def make_checkpoint(folder: Path, config: Config) -> int:
    """A checkpoint of constant tensors; gives its bytes."""
    shapes = parameter_shapes(config)
    values = {name: 0.001 * number for number, name in enumerate(shapes)}
    text = yaml.safe_dump({"model": config.model_dump()})
    save_weights(folder, shapes, lambda name: torch.full(shapes[name], values[name]), {}, config=text, tokenizer=None)
    return 4 * sum(shape.numel() for shape in shapes.values())


def convert(source: Path, out: Path, to: str, dtype: str) -> None:
    """The conversion as the command makes it."""
    format_named(to).write(open_source(source), out, Form(dtype, overwrite=True))


def copy(source: Path, out: Path) -> None:
    """The files with the tensors, as `cp` copies them, through to the disk as a conversion is."""
    shutil.copytree(source / "tensors", out)
    for path in out.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def in_turn(works: Mapping[str, Callable[[], object]], rounds: int, source: Path, out: Path) -> dict[str, Cost]:
    """The best of some runs of each, every one in a process of its own, which finds the source on the disk only."""
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            forget(source)
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                costs[name].append(pool.submit(measured, work).result())
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
    return {name: Cost(*(min(column) for column in zip(*found, strict=True))) for name, found in costs.items()}


def forget(folder: Path) -> None:
    """Have the system keep nothing of the files in its memory, as of files that are larger than it."""
    for path in folder.rglob("*.distcp"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama2-70b", help="a file of configs/models")
    parser.add_argument("--layers", type=int, default=2, help="how many of its layers (default: 2)")
    parser.add_argument("--to", choices=("huggingface", "gguf"), default="huggingface")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32", "q8_0"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the files go; by default a temporary folder")
    arguments = parser.parse_args()
    settings = yaml.safe_load((MODELS / f"{arguments.model}.yaml").read_text(encoding="utf-8"))
    config = Config(**settings | {"num_hidden_layers": arguments.layers})
    with TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        size = make_checkpoint(folder / "checkpoints", config)
        source = Path(resolve(folder / "checkpoints"))
        out = folder / "out"
        works = {
            "convert": partial(convert, source, out, arguments.to, arguments.dtype),
            "copy": partial(copy, source, out),
        }
        costs = in_turn(works, arguments.rounds, source, out)
    print(
        f"{size / 1e9:.1f} GB of fp32 to {arguments.to} in {arguments.dtype}, torch {torch.get_num_threads()} threads"
    )
    for name, cost in costs.items():
        print(
            f"{name:>8}: {size / 1e9 / cost.seconds:6.2f} GB/s read, {cost.seconds:6.1f} s, "
            f"{cost.cpu_seconds:6.1f} s of the CPU, peak memory {cost.peak / 2**30:.2f} GiB"
        )
    converted, copied = costs["convert"], costs["copy"]
    print(
        f"   ratio: {copied.seconds / converted.seconds:6.2f}, by seconds of the CPU "
        f"{copied.cpu_seconds / converted.cpu_seconds:.2f}"
    )


if __name__ == "__main__":
    main()

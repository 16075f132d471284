"""How fast is one training step, and how much memory does it take, against what a user would pick instead?

    python benchmarks/train_step.py                       # all cases, one thread
    python benchmarks/train_step.py --threads 2 --rounds 9 --case bf16/32000

A step is forward, loss, backward and AdamW of a Llama with hidden size 512, 8 layers, 8 heads and ffn 1,408, on random
tokens. Contenders run in turn in one process: megaxf's plain-torch engine, transformers, litgpt (where installed), each
with and without torch.compile; beside them the limit, which is only the matrix products of that step. In bf16 megaxf
keeps fp32 master weights and moments and sums gradients in fp32; the others train in bf16 throughout, which is less
work, or under autocast with fp32 weights, which is the same guarantee.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.timing import alternate, median_ratio
from benchmarks.train_step_peers import Shape, Step, litgpt_step, matrix_products, transformers_step

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CASES = [f"{dtype}/{vocab}" for dtype in DTYPES for vocab in (8192, 32000)]


def megaxf_step(shape: Shape, compiled: bool) -> Step:
    """The plain-torch engine of megaxf on one process, with gradient clipping off."""
    from benchmarks.random_run import random_run
    from megaxf.engine import TorchBatch, create
    from megaxf.parallel.mesh import build_mesh

    precision = "bf16" if shape.dtype == torch.bfloat16 else "fp32"
    model = {
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "tie_word_embeddings": False,
    }  # fmt: skip
    train = {
        "global_batch_size": shape.batch, "micro_batch_size": shape.batch, "gradient_clip": 0.0,
        "precision": precision, "compile": compiled,
    }  # fmt: skip
    run = random_run(model, shape.sequence, train, engine={"zero_stage": 0})
    engine = create(run, build_mesh(), "cpu")
    batch = TorchBatch(*shape.inputs())
    return partial(engine.train_step, [batch], 1e-4)


def contenders(shape: Shape) -> dict[str, Callable[[], Step]]:
    """Name -> maker of its step, for all that is installed."""
    makers: dict[str, Callable[[], Step]] = {"limit": partial(matrix_products, shape)}
    peers = {"transformers": transformers_step, "litgpt": litgpt_step}
    installed = {name: maker for name, maker in peers.items() if importlib.util.find_spec(name)}
    for name, maker in {"megaxf": megaxf_step, **installed}.items():
        makers[name] = partial(maker, shape, False)
        makers[f"{name} compiled"] = partial(maker, shape, True)
    if shape.dtype == torch.bfloat16 and "transformers" in installed:
        makers["transformers autocast"] = partial(transformers_step, shape, False, autocast=True)
        makers["transformers autocast compiled"] = partial(transformers_step, shape, True, autocast=True)
    return makers


def peak_memory(case: str, name: str, arguments: argparse.Namespace) -> float:
    """MiB that one contender's model, optimizer and three steps add to a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--only", name, "--threads", str(arguments.threads)]
    command += ["--sequence", str(arguments.sequence), "--batch", str(arguments.batch)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def measure_memory(maker: Callable[[], Step]) -> float:
    """MiB of peak memory above what the libraries take before anything is built."""
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    before = peak_resident()
    step = maker()
    for _ in range(3):
        step()
    return peak_resident() - before


def peak_resident() -> float:
    """MiB that this process has held at most; getrusage would also count what its parent held when it forked."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def shape_of(case: str, arguments: argparse.Namespace) -> Shape:
    """The shape of a case such as bf16/32000."""
    dtype, vocab = case.split("/")
    return Shape(512, 8, 8, 1408, int(vocab), arguments.sequence, arguments.batch, DTYPES[dtype])


def report(case: str, arguments: argparse.Namespace) -> None:
    """Run one case and print its table."""
    shape = shape_of(case, arguments)
    makers = contenders(shape)
    seconds = alternate({name: maker() for name, maker in makers.items()}, arguments.rounds)
    memory = {name: peak_memory(case, name, arguments) for name in makers if name != "limit" and arguments.memory}
    print(f"\n{case}: sequence {shape.sequence}, batch {shape.batch}, {arguments.threads} thread(s), "
          f"median of {arguments.rounds} rounds")  # fmt: skip
    print(f"{'':32}{'seconds':>9}{'tokens/s':>10}{'of limit':>10}{'peak MiB':>10}")
    for name, times in seconds.items():
        median = statistics.median(times)
        share = statistics.median(seconds["limit"]) / median
        peak = f"{memory[name]:10.0f}" if name in memory else ""
        print(f"{name:32}{median:9.3f}{shape.tokens / median:10.0f}{share:10.0%}{peak}")
    ours = min((n for n in seconds if n.startswith("megaxf")), key=lambda n: statistics.median(seconds[n]))
    peers = [n for n in seconds if n != "limit" and not n.startswith("megaxf")]
    best = min(peers, key=lambda n: statistics.median(seconds[n]), default=None)
    if best:
        print(f"{ours} is {median_ratio(seconds[ours], seconds[best]):.2f} x as fast as the best peer, {best}")


def main() -> None:
    """Read the options and run the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="precision/vocabulary; all of them by default")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=7, help="counted steps of each contender (default: 7)")
    parser.add_argument("--sequence", type=int, default=256, help="tokens in a sequence (default: 256)")
    parser.add_argument("--batch", type=int, default=2, help="sequences in a step (default: 2)")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave out the peak memory runs")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.only:
        shape = shape_of(arguments.case[0], arguments)
        print(json.dumps(measure_memory(contenders(shape)[arguments.only])))
        return
    for case in arguments.case or CASES:
        report(case, arguments)


if __name__ == "__main__":
    main()

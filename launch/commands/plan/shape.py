"""`megaxf plan shape`: from a size to the sizes of a model. Arguments only; the work is in megaxf.plan.shape."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megaxf.plan.shape.propose import Wish

HELP = "from a number of parameters, or a budget, to layers, heads and widths; beside published shapes"

EPILOG = """\
Give --params, or --flops to ask a scaling law for the size. Numbers are written 7b, 350M or 1e22.

Proposals are of the Llama family: SwiGLU, grouped key/value heads, every extent a multiple of what GPUs and the given
degrees like, proportions as published models of the size have them. The model file goes into a run:

examples:
  megaxf plan shape --params 7b
  megaxf plan shape --params 7b --tensor-parallel 8 --pipeline-parallel 4 -o model.yaml
  megaxf plan shape --flops 1e22 --vocab-size 50257
  megaxf pretrain run.yaml model=model.yaml --check
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("--params", type=number, metavar="N", help="parameters, all of them")
    parser.add_argument("--flops", type=number, metavar="C", help="training compute, for which a law says N")
    parser.add_argument("--law", metavar="NAME", help="with --flops: of megaxf plan laws, or law.json (epoch)")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="T", help="divides heads and MLP (1)")
    parser.add_argument("--pipeline-parallel", type=int, default=1, metavar="P", help="divides layers (1)")
    parser.add_argument("--vocab-size", type=int, metavar="V", help="of the tokenizer (default: by size)")
    parser.add_argument("--kv-heads", type=int, metavar="K", help="key/value heads (default: 8, fewer of few heads)")
    parser.add_argument("--sequence-length", type=int, default=4096, metavar="S", help="the longest (%(default)s)")
    parser.add_argument("--many", type=int, default=3, metavar="K", help="how many proposals (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, metavar="YAML", help="write the first as a model file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Proposes, prints, writes."""
    from megaxf.plan.errors import PlanError
    from megaxf.plan.output import as_json, check_file, written
    from megaxf.plan.shape.page import model_file, page, values
    from megaxf.plan.shape.propose import propose

    for name in ("sequence_length", "many"):
        if getattr(arguments, name) < 1:
            raise PlanError(f"--{name.replace('_', '-')} = {getattr(arguments, name)} is too small; use 1 or more")
    check_file(arguments.output, read=[arguments.law])
    wish = _wish(arguments)
    found = propose(wish, arguments.many)
    length = arguments.sequence_length
    print(as_json(values(found, wish, length)) if arguments.json else page(found, wish))
    if arguments.output:
        with written(arguments.output) as part:
            part.write_text(model_file(found[0], wish, length), encoding="utf-8")
        print(f"written: {arguments.output}", file=sys.stderr)
    return 0


def _wish(arguments: argparse.Namespace) -> Wish:
    """What is asked for; the law's answer is told on the error stream."""
    from megaxf.plan.errors import PlanError
    from megaxf.plan.shape.propose import Wish

    if (arguments.params is None) == (arguments.flops is None):
        raise PlanError("give one of --params and --flops: the size, or the compute for which a law says it")
    if arguments.law is not None and arguments.flops is None:
        raise PlanError("--law says the size for --flops, and has no effect with --params")
    size, counts = arguments.params, "total"
    if arguments.flops is not None:
        from megaxf.plan.laws.files import find
        from megaxf.plan.laws.optimum import for_flops
        from megaxf.plan.parameters import COUNTS
        from megaxf.plan.quantities import quantity

        law = find("epoch" if arguments.law is None else arguments.law)
        best = for_flops(law.form, arguments.flops)
        size, counts = best.parameters, COUNTS.get(law.counts, "matmul")
        says = f"{quantity(size)} parameters ({law.counts}) on {quantity(best.tokens)} tokens"
        print(f"the law {law.name}, of {arguments.flops:g} FLOPs: {says}", file=sys.stderr)
    degrees = arguments.tensor_parallel, arguments.pipeline_parallel
    return Wish(size, counts, arguments.vocab_size, arguments.kv_heads, *degrees)

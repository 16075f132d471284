"""`megaxf plan laws`: what scaling laws say. Arguments only; the work is in megaxf.plan.laws."""

from __future__ import annotations

import argparse

HELP = "ask scaling laws: what to train for a budget, a size, a loss; with intervals, and what other laws say"

EPILOG = """\
Give one of --flops, --params, --tokens and --loss for the optimum, or two for a training of your own.
Numbers are written 7b, 1.5T, 300M or 5.76e23. --json holds every digit.

examples:
  megaxf plan laws --flops 5.76e23                             Gopher's compute: what should it have been?
  megaxf plan laws --params 8b --tokens 15T                    the cost of training a small model long
  megaxf plan laws --loss 2.0 --law hoffmann_unrounded         compute for a loss
  megaxf plan laws --params 30b --inference-tokens 10T         the same loss, cheapest over its life
  megaxf plan laws --flops 9.3e21 --unique-tokens 25b          how often to repeat short data
  megaxf plan laws --flops 1e20 --law fit/law.json             a law of your own, from megaxf plan fit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    from megaxf.plan.quantities import number

    parser.epilog = EPILOG
    parser.add_argument("--flops", type=number, metavar="C", help="training compute; C = 6 N D")
    parser.add_argument("--params", type=number, metavar="N", help="parameters, as the law counts them")
    parser.add_argument("--tokens", type=number, metavar="D", help="training tokens")
    parser.add_argument("--loss", type=number, metavar="L", help="loss to reach, nats per token")
    parser.add_argument(
        "--law", default="epoch", metavar="NAME", help="a law of the table, or a law.json (%(default)s)"
    )
    parser.add_argument("--inference-tokens", type=number, metavar="T", help="tokens that the model will serve")
    parser.add_argument("--unique-tokens", type=number, metavar="U", help="tokens that there are without repeats")
    parser.add_argument("--list", action="store_true", help="only list the laws")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Answers one question."""
    from megaxf.plan.laws.answer import Question, answer
    from megaxf.plan.laws.files import find
    from megaxf.plan.laws.page import listed, listing, page
    from megaxf.plan.output import as_json

    if arguments.list:
        print(as_json(listed()) if arguments.json else listing())
        return 0
    values = vars(arguments) | {"parameters": arguments.params}
    found = answer(find(arguments.law), Question(**{name: values[name] for name in Question._fields}))
    print(as_json(found) if arguments.json else page(found))
    return 0

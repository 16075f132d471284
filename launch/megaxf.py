"""The `megaxf` command: one verb for each step of the work, each a file in launch/commands.

A command file has HELP (one line), `add_arguments(parser)` and `run(arguments) -> exit code`. It is found by
its file name and imported only when its verb or the list of verbs is asked for; what is heavy it imports in `run`.

Exit codes: 0 done, 2 a fault of the user's (a message, no traceback), 130 interrupted, else as the verb says.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType

from launch import commands

ORDER = ("plan", "prepare", "pretrain", "convert", "generate", "inspect")
"""The path of the work; other commands follow by name."""

EXAMPLE = """\
an example, from text to a trained model:
  megaxf prepare my-texts/ --train-tokenizer bpe --vocab-size 4096 --output tokens/
  megaxf pretrain run.yaml --check --world-size 64      can this run on 64 GPUs?
  megaxf pretrain run.yaml                              on this machine
  torchrun --nproc-per-node 8 launch/pretrain.py run.yaml train.micro_batch_size=2
  megaxf convert runs/mine/ my-model/
  megaxf generate my-model/ --prompt "Once upon"

`megaxf VERB --help` says more.
"""

USER_FAULT, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; `argv` is sys.argv[1:] by default. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_page())
        return 0
    if arguments[0] == "--version":
        from megaxf import __version__

        print(f"megaxf {__version__}")
        return 0
    if arguments[0] not in verbs():
        return fail(unknown(arguments[0]))
    return run_verb(arguments[0], arguments[1:])


def run_verb(verb: str, argv: Sequence[str], quiet: bool = False) -> int:
    """Run one verb with its arguments; a fault of the user's becomes a message and exit code 2.

    quiet: say nothing about faults, since another rank does.
    """
    module = command(verb)
    parser = argparse.ArgumentParser(
        prog=f"megaxf {verb}", description=module.HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    try:
        return module.run(parser.parse_intermixed_args(argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # so that nothing is flushed into the closed pipe at exit
        return 141
    except ValueError as error:
        if not getattr(error, "user_fault", False):
            raise
        return USER_FAULT if quiet else fail(str(error))


def verbs() -> list[str]:
    """The commands by file name, in the order of the work."""
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def command(verb: str) -> ModuleType:
    """The module of a verb."""
    return importlib.import_module(f"launch.commands.{verb}")


def help_page() -> str:
    """Every verb with its line, and a worked example."""
    names = verbs()
    width = max((len(name) for name in names), default=0) + 2
    lines = [f"  {name:<{width}}{command(name).HELP}" for name in names]
    return "\n".join(
        [
            "usage: megaxf VERB [arguments]",
            "",
            "Pretraining of large language models on clusters, from text to a model that talks.",
            "",
            "verbs, in the order of the work:",
            *lines,
            "",
            EXAMPLE,
        ]
    ).rstrip()


def unknown(verb: str) -> str:
    """What to say about a verb that is none."""
    close = get_close_matches(verb, verbs(), n=1, cutoff=0.5)
    advice = f"did you mean {close[0]}?" if close else f"the verbs are {', '.join(verbs())}"
    return f"{verb!r} is not a verb; {advice}"


def fail(message: str) -> int:
    """Say what is wrong on the error stream; gives the exit code."""
    print(f"megaxf: error: {message}", file=sys.stderr)
    return USER_FAULT


if __name__ == "__main__":
    sys.exit(main())

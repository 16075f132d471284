"""The `megaxf` command: one verb for each step of the work, each a file in launch/commands.

A command file has HELP (one line), `add_arguments(parser)` and `run(arguments) -> exit code`. It is found by
its file name and imported only when its verb or the list of verbs is asked for; what is heavy it imports in `run`.
A folder in launch/commands is a verb with verbs of its own, found likewise (`megaxf plan laws`: plan/laws.py); its
`__init__` has HELP and EXAMPLE, and may have DEFAULT, the verb that is meant where options come at once.

Exit codes: 0 done, 2 a fault of the user's (a message, no traceback), 130 interrupted, else as the verb says.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import ModuleType

from launch import commands

ORDER = ("plan", "prepare", "pretrain", "submit", "checkpoint", "convert", "generate", "evaluate")
"""The path of the work; other commands follow by name."""

EXAMPLE = """\
an example, from text to a trained model:
  megaxf prepare my-texts/ --train-tokenizer bpe --vocab-size 4096 --output tokens/
  megaxf pretrain run.yaml --check --world-size 64      can this run on 64 GPUs?
  megaxf pretrain run.yaml                              on this machine
  torchrun --nproc-per-node 8 launch/pretrain.py run.yaml train.micro_batch_size=2
  megaxf checkpoint list runs/mine/                     what is saved, and is it whole?
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
    verb, *rest = arguments
    if verb not in verbs():
        return fail(unknown(verb))
    if not verbs(verb):
        return run_verb(verb, rest)
    if not rest or rest[0] in ("-h", "--help", "help"):
        print(group_page(verb))
        return 0
    if rest[0].startswith("-") and (usual := getattr(command(verb), "DEFAULT", None)):
        return run_verb(f"{verb} {usual}", rest)
    if rest[0] not in verbs(verb):
        return fail(unknown(rest[0], verb))
    return run_verb(f"{verb} {rest[0]}", rest[1:])


def run_verb(verb: str, argv: Sequence[str], quiet: bool = False) -> int:
    """Run one verb with its arguments; a fault of the user's becomes a message and exit code 2.

    So does what the system says of a file that is missing, may not be written, or finds no room.
    verb: one word, or two for the verb of a verb. quiet: say nothing about faults that another rank has, too.
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
    except OSError as error:
        # What a disk or its server does is no fault of the user's: whoever started this may try again.
        if error.filename is None or error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT):
            raise
        # Said on every rank: a path may be right on one host and wrong on another.
        return fail(f"{os.fsdecode(error.filename)}: cannot be used: {error.strerror}")


def verbs(group: str = "") -> list[str]:
    """The commands by file name, in the order of the work; or those of one that is a group of them, else none."""
    folders = [os.path.join(folder, group) for folder in commands.__path__]
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def command(verb: str) -> ModuleType:
    """The module of a verb of one word or two."""
    return importlib.import_module(f"launch.commands.{verb.replace(' ', '.')}")


def help_page() -> str:
    """Every verb with its line, and a worked example."""
    return "\n".join(
        [
            "usage: megaxf VERB [arguments]",
            "",
            "Pretraining of large language models on clusters, from text to a model that talks.",
            "",
            "verbs, in the order of the work:",
            *_lines(),
            "",
            EXAMPLE,
        ]
    ).rstrip()


def group_page(group: str) -> str:
    """The verbs of a group, each with its line, and the group's examples."""
    module = command(group)
    head = [f"usage: megaxf {group} VERB [arguments]", "", module.HELP, "", "verbs:"]
    return "\n".join([*head, *_lines(group), "", module.EXAMPLE]).rstrip()


def _lines(group: str = "") -> list[str]:
    """A line of help for each verb."""
    names = verbs(group)
    width = max((len(name) for name in names), default=0) + 2
    return [f"  {name:<{width}}{command(f'{group} {name}'.strip()).HELP}" for name in names]


def unknown(verb: str, group: str = "") -> str:
    """What to say about a verb that is none."""
    known = verbs(group)
    close = get_close_matches(verb, known, n=1, cutoff=0.5)
    advice = f"did you mean {close[0]}?" if close else f"the verbs are {', '.join(known)}"
    return f"{verb!r} is not a verb{f' of {group}' if group else ''}; {advice}"


def fail(message: str) -> int:
    """Say what is wrong on the error stream; gives the exit code."""
    print(f"megaxf: error: {message}", file=sys.stderr)
    return USER_FAULT


if __name__ == "__main__":
    sys.exit(main())

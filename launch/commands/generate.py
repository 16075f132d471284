"""`megaxf generate`: see what a model makes of a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from launch.model_options import SOURCE, add_model_options

if TYPE_CHECKING:
    from megaxf.generate import Result

HELP = "let a model go on with a text"

EPILOG = f"""\
{SOURCE}

  megaxf generate runs/mine --prompt 'def read_lines(path):' --max-new-tokens 100
  megaxf generate my-model --prompt 'import ' --prompt 'class ' --temperature 0.8 --top-p 0.95 --seed 7
  megaxf generate my-model --prompt 'Q: 2 + 2?\\nA:' --stop '\\n' --stop 'Q:' --repetition-penalty 1.1
  megaxf generate my-model --prompts-file prompts.txt --batch-size 32 --json --logprobs > answers.jsonl
  megaxf generate my-model --prompt 'Once' --device-map auto --max-memory 0=20GB --max-memory cpu=60GB

on several GPUs, each holding a part of the model, with the same texts as on one:
  torchrun --nproc-per-node 2 launch/generate.py my-model --prompt 'Once upon'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, prompts, and how to choose tokens."""
    parser.epilog = EPILOG
    add_model_options(parser)
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be given several times")
    parser.add_argument("--prompts-file", metavar="FILE", help="a prompt a line (UTF-8)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s")
    _add_choice(parser)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help=r"end before this text (\n: a line end); repeatable"
    )
    parser.add_argument(
        "--stop-id", action="append", default=[], type=int, metavar="ID", help="end at this token; repeatable"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="prompts at a time; others wait (default: all)")
    parser.add_argument(
        "--cache",
        choices=("static", "paged", "sliding"),
        help="memory for keys and values: all at once (default), in blocks as rows grow, or a window's "
        "(default for models with one)",
    )
    parser.add_argument("--logprobs", action="store_true", help="with --json: log-probabilities of the new tokens")
    parser.add_argument("--prompt-logprobs", action="store_true", help="with --json: those of the prompt's tokens")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each prompt, nothing else")
    parser.add_argument("--no-stream", action="store_true", help="print a text when it is complete")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the likeliest that reach probability P (default: 1)"
    )
    parser.add_argument("--seed", type=int, help="of the draws; each prompt has its own (default: 0)")
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: repeat less (default: 1)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Generate and print."""
    from launch.rendezvous import connect, detect, disconnect
    from megaxf.generate import GenerateError, Sampling

    if (arguments.logprobs or arguments.prompt_logprobs) and not arguments.json:
        raise GenerateError("--logprobs and --prompt-logprobs have an effect with --json only")
    if arguments.temperature == 0:
        given = {"--top-k": arguments.top_k, "--top-p": arguments.top_p, "--seed": arguments.seed}
        if unused := [name for name, value in given.items() if value is not None]:
            raise GenerateError(
                f"{', '.join(unused)}: no effect while --temperature is 0, which takes the likeliest token; give "
                "--temperature 1, or another above 0, to draw"
            )
    texts = _prompts(arguments)
    top_p = 1.0 if arguments.top_p is None else arguments.top_p
    sampling = Sampling(
        arguments.temperature, arguments.top_k, top_p, arguments.repetition_penalty, arguments.seed or 0
    )
    launch = detect()
    device, axis = None, None
    if launch.world_size > 1:
        from megaxf.parallel.mesh import build_mesh

        device = connect(launch)
        axis = build_mesh({"tensor": launch.world_size}).axis("tensor")
    _generate(arguments, texts, sampling, device, axis, quiet=launch.rank > 0)
    disconnect()
    return 0


def _generate(
    arguments: argparse.Namespace, texts: list[str], sampling: Any, device: Any, axis: Any, quiet: bool
) -> None:
    from data_pipeline.tokenizer.base import load_tokenizer
    from launch.model_options import open_model, opening_of
    from megaxf.generate import GenerateError, Stop, generate
    from megaxf.train.trained import open_source

    source = open_source(arguments.source)
    if source.tokenizer is None:
        raise GenerateError(f"{source.path} has no tokenizer: its text cannot be read or written")
    tokenizer = load_tokenizer(source.tokenizer)
    opening = opening_of(source)
    before = [] if opening is None else [opening]
    # Where nothing else begins a document, it is what follows the end of another.
    prompts = [before + tokenizer.encode(text) or [tokenizer.eod_id] for text in texts]
    streaming = len(texts) == 1 and not (arguments.json or arguments.no_stream or quiet)
    printer = _Printer(texts[0]) if streaming else None
    stops = [text.replace("\\n", "\n").replace("\\t", "\t") for text in arguments.stop]
    one_row = arguments.batch_size == 1 or len(prompts) == 1
    model = open_model(arguments, source, device, axis, one_row=one_row)
    with _progress(len(texts), quiet=quiet or len(texts) == 1) as told:
        results = generate(
            model,
            prompts,
            max_new_tokens=arguments.max_new_tokens,
            sampling=sampling,
            stop=Stop(source.eos_ids or [tokenizer.eod_id], arguments.stop_id, stops),
            batch_size=arguments.batch_size,
            cache=arguments.cache,
            decode=tokenizer.decode,
            on_text=printer,
            logprobs=arguments.logprobs,
            prompt_logprobs=arguments.prompt_logprobs,
            axis=axis,
            told=told,
        )
    if printer:
        printer.close()
    elif not quiet:
        _print(texts, prompts, results, arguments)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    from megaxf.generate import GenerateError

    texts = list(arguments.prompt)
    if arguments.prompts_file:
        try:
            # Read with line ends as "\n". Not by str.splitlines, to which a form feed, and more, ends a line.
            lines = Path(arguments.prompts_file).read_text(encoding="utf-8").split("\n")
            texts += lines if lines[-1] else lines[:-1]
        except (OSError, UnicodeDecodeError) as error:
            raise GenerateError(f"--prompts-file {arguments.prompts_file} cannot be read: {error}") from None
    if wrong := [text for text in texts if not _is_text(text)]:
        raise GenerateError(f"--prompt {wrong[0]!r} has bytes that are no UTF-8")
    if not texts:
        raise GenerateError("no prompt: give --prompt TEXT (--prompt '' starts a new text) or --prompts-file FILE")
    return texts


def _is_text(argument: str) -> bool:
    """Bytes of the command line that are no text come as halves of characters, which nothing can encode."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A line on the error stream, where that is a terminal; gives the function that hears how many prompts ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task("prompts", total=total)
        yield lambda ended: progress.advance(task, ended)


class _Printer:
    """Prints a prompt, and then its continuation as it comes."""

    def __init__(self, text: str):
        self._waiting = text

    def __call__(self, number: int, piece: str) -> None:
        print(visible(self._waiting + piece), end="", flush=True)
        self._waiting = ""

    def close(self) -> None:
        """End the line."""
        print(visible(self._waiting), flush=True)


def _print(
    texts: list[str], prompts: list[list[int]], results: Sequence[Result], arguments: argparse.Namespace
) -> None:
    import json

    for number, (text, prompt, result) in enumerate(zip(texts, prompts, results, strict=True), 1):
        if arguments.json:
            answer = {
                "prompt": text,
                "continuation": result.text,
                "prompt_tokens": prompt,
                "tokens": result.tokens,
                "stopped_by": result.reason,
                "logprobs": result.logprobs,
                "prompt_logprobs": result.prompt_logprobs,
            }
            given = {key: value for key, value in answer.items() if value is not None}
            print(json.dumps(given, ensure_ascii=sys.stdout.encoding.lower() != "utf-8"))
            continue
        if len(texts) > 1 or arguments.prompts_file:
            print(f"--- prompt {number}")
        print(visible(text + (result.text or "")))


def visible(text: str) -> str:
    """Text that can be printed and is safe to print: control characters other than line ends and tabs cannot steer the
    terminal, and what its encoding has not is spelled out."""
    safe = "".join(ascii(char)[1:-1] if category(char) == "Cc" and char not in "\n\t" else char for char in text)
    return safe.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)

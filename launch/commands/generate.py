"""`megaxf generate`: see what a model makes of a prompt."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

if TYPE_CHECKING:
    from megaxf.convert.interface import Trained
    from megaxf.generate import Result

HELP = "let a model go on with a text"

EPILOG = """\
SOURCE is a run folder (its newest complete checkpoint is taken), a checkpoint, or a Hugging Face folder.

  megaxf generate runs/mine --prompt 'def read_lines(path):' --max-new-tokens 100
  megaxf generate my-model --prompt 'import ' --prompt 'class ' --temperature 0.8 --top-p 0.95 --seed 7
  megaxf generate my-model --prompts-file prompts.txt --json > answers.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, prompts, and how to choose tokens."""
    parser.epilog = EPILOG
    parser.add_argument("source", metavar="SOURCE", help="the model; see below")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be given several times")
    parser.add_argument("--prompts-file", metavar="FILE", help="a prompt a line (UTF-8)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens only")
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="draw among the likeliest that reach probability P"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws; each prompt has its own (default: 0)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: float32 on a CPU, else as trained")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each prompt, nothing else")
    parser.add_argument("--no-stream", action="store_true", help="print a text when it is complete")


def run(arguments: argparse.Namespace) -> int:
    """Generate and print."""
    from data_pipeline.tokenizer.base import load_tokenizer
    from megaxf.generate import GenerateError, Sampling, generate
    from megaxf.train.trained import open_source

    texts = _prompts(arguments)
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    source = open_source(arguments.source)
    if source.tokenizer is None:
        raise GenerateError(f"{source.path} has no tokenizer: its text cannot be read or written")
    tokenizer = load_tokenizer(source.tokenizer)
    # The start of a document is what follows the end of another.
    prompts = [tokenizer.encode(text) or [tokenizer.eod_id] for text in texts]
    stream = None
    if len(texts) == 1 and not (arguments.json or arguments.no_stream):
        stream = _Printer(texts[0], tokenizer.decode, prompts[0])
    results = generate(
        _model(source, arguments),
        prompts,
        max_new_tokens=arguments.max_new_tokens,
        sampling=sampling,
        eos_ids=source.eos_ids or [tokenizer.eod_id],
        on_token=stream,
    )
    if stream:
        stream.close()
    else:
        for number, (text, prompt, result) in enumerate(zip(texts, prompts, results, strict=True), 1):
            _print(number, text, _continuation(tokenizer.decode, prompt, result.tokens), result, arguments)
    return 0


def _prompts(arguments: argparse.Namespace) -> list[str]:
    from megaxf.generate import GenerateError

    texts = list(arguments.prompt)
    if arguments.prompts_file:
        try:
            texts += Path(arguments.prompts_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise GenerateError(f"--prompts-file {arguments.prompts_file} cannot be read: {error}") from None
    if not texts:
        raise GenerateError("no prompt: give --prompt TEXT (--prompt '' starts a new text) or --prompts-file FILE")
    return texts


def _model(source: Trained, arguments: argparse.Namespace) -> Any:
    import torch

    from megaxf.generate import loading

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = arguments.dtype or ("float32" if device == "cpu" else source.dtype)
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]
    if source.format == "huggingface":
        return loading.from_folder(source.config, source.path, dtype, device)
    return loading.from_weights(source.config, source.weights, dtype, device)


class _Printer:
    """Prints a prompt, and then its continuation as it comes."""

    def __init__(self, text: str, decode: Callable[[Any], str], prompt: list[int]):
        from megaxf.generate.streaming import TextStream

        self._stream = TextStream(decode, prompt)
        self._waiting = text

    def __call__(self, row: int, token: int) -> None:
        print(visible(self._waiting + self._stream.feed(token)), end="", flush=True)
        self._waiting = ""

    def close(self) -> None:
        """Print what is left, and end the line."""
        print(visible(self._waiting + self._stream.close()), flush=True)


def _continuation(decode: Callable[[Any], str], prompt: list[int], tokens: list[int]) -> str:
    from megaxf.generate.streaming import TextStream

    stream = TextStream(decode, prompt)
    return "".join([*map(stream.feed, tokens), stream.close()])


def _print(number: int, text: str, continuation: str, result: Result, arguments: argparse.Namespace) -> None:
    import json

    if arguments.json:
        answer = {"prompt": text, "continuation": continuation, "tokens": result.tokens, "stopped_by": result.reason}
        print(json.dumps(answer, ensure_ascii=False))
        return
    if number > 1 or len(arguments.prompt) > 1 or arguments.prompts_file:
        print(f"--- prompt {number}")
    print(visible(text + continuation))


def visible(text: str) -> str:
    """Text that is safe to print: control characters other than line ends and tabs cannot steer the terminal."""
    return "".join(ascii(char)[1:-1] if category(char) == "Cc" and char not in "\n\t" else char for char in text)

"""Continue prompts of any lengths, token by token, in a batch that rows leave as they end and others enter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from megaxf.generate.batch import Batch
from megaxf.generate.caches import make_cache
from megaxf.generate.errors import GenerateError
from megaxf.generate.forward import Forward, evaluating
from megaxf.generate.rows import Result, Row, Stop
from megaxf.generate.sampling import Sampling, choose, log_probabilities, penalise, row_generator
from megaxf.generate.streaming import Decode, TextStream
from megaxf.parallel.mesh import Axis

PREFILL_CHUNK = 512


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: Stop = Stop(),  # noqa: B008
    batch_size: int | None = None,
    cache: str | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    decode: Decode | None = None,
    on_text: Callable[[int, str], None] | None = None,
    logprobs: bool = False,
    prompt_logprobs: bool = False,
    axis: Axis | None = None,
    told: Callable[[int], None] = lambda ended: None,
) -> list[Result]:
    """Continue each prompt, a sequence of token ids.

    model: as in megaxf.models; its training mode is restored, no global random state is used.
    batch_size: rows at a time, all by default; further prompts wait until one ends. cache: see `caches.make_cache`.
    prefill_chunk: tokens of a prompt in one forward pass.
    decode: ids to text, for `Result.text`, stop strings and `on_text`, which is told (prompt's number, piece of text).
    logprobs, prompt_logprobs: also give the log-probabilities of the new tokens, and of the prompts'.
    axis: the tensor axis whose ranks hold the model together; all call alike, and all get the same results.
    told: hears how many prompts have ended, whenever some do.
    A row ends where prompt and new tokens reach model.config.max_position_embeddings.
    Raises GenerateError where a prompt is empty or leaves no room, or a number has no meaning.
    """
    forward = Forward(model, axis)
    _check(forward, prompts, max_new_tokens, stop, decode, {"prefill_chunk": prefill_chunk, "batch_size": batch_size})
    rows = []
    for number, prompt in enumerate(prompts):
        room = forward.longest - len(prompt)
        limit, at_limit = (max_new_tokens, "length") if max_new_tokens <= room else (room, "context")
        stream = None if decode is None else TextStream(decode, prompt, stop.strings)
        generator = row_generator(sampling.seed, number)
        rows.append(Row(number, list(prompt), limit, at_limit, stop, generator, stream, on_text))  # type: ignore[arg-type]
    if rows and (max_new_tokens or prompt_logprobs):
        size = min(batch_size or len(rows), len(rows))
        length = max(len(row.prompt) + row.limit for row in rows)
        kept = make_cache(cache, model.config.sliding_window, size, length)
        with evaluating(model):
            _run(Batch(forward, kept, prefill_chunk, prompt_logprobs), deque(rows), size, sampling, logprobs, told)
    return [row.result(logprobs, prompt_logprobs) for row in rows]


def _run(
    batch: Batch, waiting: deque[Row], size: int, sampling: Sampling, logprobs: bool, told: Callable[[int], None]
) -> None:
    """Until every row has ended."""
    while waiting or batch.rows:
        free = min(size - len(batch.rows), len(waiting))
        if free:
            rows = sorted((waiting.popleft() for _ in range(free)), key=lambda row: -len(row.prompt))
            logits = batch.enter(rows)
        else:
            rows, logits = batch.rows, batch.step()
        _advance(rows, logits, sampling, logprobs)
        told(batch.leave())


def _advance(rows: list[Row], logits: torch.Tensor, sampling: Sampling, logprobs: bool) -> None:
    """Choose the next token of each row from logits [rows, vocab]."""
    scores = logits
    if sampling.repetition_penalty != 1:
        scores = penalise(logits, [row.all_tokens for row in rows], sampling.repetition_penalty)
    tokens = choose(scores, sampling, [row.generator for row in rows])
    chances: list[Any] = [None] * len(rows)
    if logprobs:
        chances = log_probabilities(logits, torch.tensor(tokens, device=logits.device)).tolist()
    for row, token, chance in zip(rows, tokens, chances, strict=True):
        row.accept(token, chance)


def _check(
    forward: Forward,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    stop: Stop,
    decode: Decode | None,
    counts: dict[str, int | None],
) -> None:
    """Raises GenerateError for what has no meaning."""
    if max_new_tokens < 0:
        raise GenerateError(f"max_new_tokens = {max_new_tokens} must be 0 or more")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise GenerateError(f"{name} = {count} must be 1 or more")
    if "" in stop.strings:
        raise GenerateError("a stop string is empty: it would end every text at once")
    if stop.strings and decode is None:
        raise GenerateError("stop strings are looked for in text: give `decode` too")
    for token in stop.ids:
        if not 0 <= token < forward.vocab_size:
            raise GenerateError(f"stop id {token} is beyond the vocabulary of {forward.vocab_size}: it never comes")
    for number, prompt in enumerate(prompts):
        _check_prompt(forward, number, prompt)


def _check_prompt(forward: Forward, number: int, prompt: Sequence[int]) -> None:
    if not prompt:
        raise GenerateError(f"prompt {number} is empty: give at least one token, such as the end-of-document")
    if len(prompt) >= forward.longest:
        raise GenerateError(
            f"prompt {number} has {len(prompt)} tokens and the model's longest sequence is {forward.longest} "
            "(max_position_embeddings): nothing can follow; shorten it"
        )
    wrong = [token for token in prompt if not 0 <= token < forward.vocab_size]
    if wrong:
        raise GenerateError(f"prompt {number} has token {wrong[0]}, beyond the vocabulary of {forward.vocab_size}")

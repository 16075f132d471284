"""Continue a batch of prompts of any lengths, token by token.

The prompts are read in chunks; a row that ends inside of a chunk is padded behind its end, where its own queries do not
look. Then every row goes on at its own position until it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch

from megaxf.generate.cache import KVCache
from megaxf.generate.errors import GenerateError
from megaxf.generate.sampling import Sampling, choose, row_generators

PREFILL_CHUNK = 512


class Result(NamedTuple):
    """What one prompt was continued with."""

    tokens: list[int]
    """New tokens, without the one that ended the text."""
    reason: Literal["eos", "length", "context"]
    """Why it ended: an end token, max_new_tokens, or the model's longest sequence."""


def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos_ids: Sequence[int] = (),
    prefill_chunk: int = PREFILL_CHUNK,
    on_token: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """Continue each prompt, a sequence of token ids.

    model: as in megaxf.models, with whole weights; its training mode is restored, no global random state is used.
    eos_ids: any of these ends a row. prefill_chunk: tokens of the prompts in one forward pass.
    on_token: told (row, token) as tokens come, end tokens excepted.
    A row ends where prompt and new tokens reach model.config.max_position_embeddings.
    Raises GenerateError where a prompt is empty or leaves no room, or a number has no meaning.
    """
    limits = [_room(model, row, prompt, max_new_tokens) for row, prompt in enumerate(prompts)]
    if prefill_chunk < 1:
        raise GenerateError(f"prefill_chunk = {prefill_chunk} must be 1 or more")
    if not prompts or not max_new_tokens:
        return [Result([], "length") for _ in prompts]
    generators = row_generators(sampling.seed, len(prompts))
    results: list[list[int]] = [[] for _ in prompts]
    reasons: dict[int, Literal["eos", "length", "context"]] = {}
    with _evaluating(model), torch.no_grad():
        cache = _cache(model, prompts, limits, prefill_chunk)
        logits = prefill(model, prompts, cache, prefill_chunk)
        while True:
            tokens = choose(logits, sampling, generators)
            for row in set(range(len(prompts))) - set(reasons):
                if tokens[row] in eos_ids:
                    reasons[row] = "eos"
                    continue
                results[row].append(tokens[row])
                if on_token is not None:
                    on_token(row, tokens[row])
                if len(results[row]) == limits[row]:
                    reasons[row] = "length" if limits[row] == max_new_tokens else "context"
            if len(reasons) == len(prompts):
                return [Result(tokens, reasons[row]) for row, tokens in enumerate(results)]
            logits = _step(model, prompts, results, cache)


def prefill(model: Any, prompts: Sequence[Sequence[int]], cache: KVCache, chunk: int) -> torch.Tensor:
    """Read the prompts into the cache; logits after the last token of each, [batch, vocab]."""
    lengths = [len(prompt) for prompt in prompts]
    last: list[torch.Tensor | None] = [None] * len(prompts)
    for start in range(0, max(lengths), chunk):
        width = min(chunk, max(lengths) - start)
        # A row that has ended waits at its end, where its padding harms nothing.
        starts = [min(start, length) for length in lengths]
        pieces = [list(prompt[begin : begin + width]) for prompt, begin in zip(prompts, starts, strict=True)]
        padded = [piece + [0] * (width - len(piece)) for piece in pieces]
        hidden = _forward(model, padded, starts, cache)
        for row, (begin, piece) in enumerate(zip(starts, pieces, strict=True)):
            if piece and begin + len(piece) == lengths[row]:
                last[row] = hidden[row, len(piece) - 1]
    return model.logits(torch.stack([row for row in last if row is not None]))


def _step(
    model: Any, prompts: Sequence[Sequence[int]], results: Sequence[Sequence[int]], cache: KVCache
) -> torch.Tensor:
    """Feed the newest token of each row, of an ended one its last again; logits [batch, vocab]."""
    newest = [[(*prompt, *result)[-1]] for prompt, result in zip(prompts, results, strict=True)]
    starts = [len(prompt) + len(result) - 1 for prompt, result in zip(prompts, results, strict=True)]
    return model.logits(_forward(model, newest, starts, cache)[:, -1])


def _forward(model: Any, tokens: list[list[int]], starts: list[int], cache: KVCache) -> torch.Tensor:
    device = model.head_weight().device
    ids = torch.tensor(tokens, device=device)
    positions = torch.tensor(starts, device=device)[:, None] + torch.arange(ids.shape[1], device=device)
    hidden: torch.Tensor = model(ids, positions=positions, cache=cache)
    return hidden


def _room(model: Any, row: int, prompt: Sequence[int], max_new_tokens: int) -> int:
    """How many tokens may follow a prompt."""
    longest = model.config.max_position_embeddings
    if max_new_tokens < 0:
        raise GenerateError(f"max_new_tokens = {max_new_tokens} must be 0 or more")
    if not prompt:
        raise GenerateError(f"prompt {row} is empty: give at least one token, such as the end-of-document")
    if len(prompt) >= longest:
        raise GenerateError(
            f"prompt {row} has {len(prompt)} tokens and the model's longest sequence is {longest} "
            "(max_position_embeddings): nothing can follow; shorten it"
        )
    wrong = [token for token in prompt if not 0 <= token < model.config.vocab_size]
    if wrong:
        raise GenerateError(f"prompt {row} has token {wrong[0]}, beyond the vocabulary of {model.config.vocab_size}")
    return min(max_new_tokens, longest - len(prompt))


def _cache(model: Any, prompts: Sequence[Sequence[int]], limits: Sequence[int], chunk: int) -> KVCache:
    config, weight = model.config, model.head_weight()
    return KVCache(
        layers=config.num_hidden_layers,
        batch=len(prompts),
        length=max(len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)),
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        window=config.sliding_window,
        chunk=min(chunk, max(len(prompt) for prompt in prompts)),
        dtype=weight.dtype,
        device=weight.device,
    )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, and afterwards the mode that was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

"""One prompt on its way to a text: what it has got, and whether it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch

from megaxf.generate.streaming import TextStream

Reason = Literal["eos", "stop", "length", "context"]


class Result(NamedTuple):
    """What one prompt was continued with."""

    tokens: list[int]
    """New tokens, without the end token; those that a stop string is made of are there."""
    reason: Reason
    """Why it ended: an end token of the model, a stop id or string of the caller's, max_new_tokens, or the model's
    longest sequence."""
    text: str | None = None
    """The new text up to a stop string, where a decoder was given."""
    logprobs: list[float] | None = None
    """Of the new tokens, where asked for: nats that the model itself gives, without temperature or penalty."""
    prompt_logprobs: list[float] | None = None
    """Of the prompt's tokens but the first, where asked for."""


@dataclass(frozen=True)
class Stop:
    """What ends a text beside its length."""

    eos_ids: Sequence[int] = ()
    """End tokens of the model."""
    ids: Sequence[int] = ()
    """More of them, of the caller's."""
    strings: Sequence[str] = ()
    """Found in the new text, within a token or across several."""


@dataclass
class Row:
    """A prompt and its continuation so far."""

    number: int
    """Of the prompt."""
    prompt: list[int]
    limit: int
    """New tokens at most."""
    at_limit: Reason
    """Why it ends there."""
    stop: Stop
    generator: torch.Generator
    stream: TextStream | None
    on_text: Callable[[int, str], None] | None
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    reason: Reason | None = None
    """None while it goes on."""

    @property
    def all_tokens(self) -> list[int]:
        """Prompt and continuation."""
        return self.prompt + self.tokens

    def accept(self, token: int, logprob: float | None) -> None:
        """Take the next token, and decide whether it was the last."""
        if len(self.tokens) == self.limit:  # Only the prompt was asked about.
            self.reason = self.at_limit
        elif token in self.stop.eos_ids or token in self.stop.ids:
            self.reason = "eos" if token in self.stop.eos_ids else "stop"
        else:
            self._append(token, logprob)
        if self.reason is not None and self.stream is not None:
            self._show(self.stream.close())
            # A stop string may have been waiting for the end of a character.
            self.reason = "stop" if self.stream.stopped else self.reason

    def _append(self, token: int, logprob: float | None) -> None:
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if self.stream is not None:
            self._show(self.stream.feed(token))
        if self.stream is not None and self.stream.stopped:
            self.reason = "stop"
        elif len(self.tokens) == self.limit:
            self.reason = self.at_limit

    def _show(self, piece: str) -> None:
        self.pieces.append(piece)
        if piece and self.on_text is not None:
            self.on_text(self.number, piece)

    def result(self, logprobs: bool, prompt_logprobs: bool) -> Result:
        """What came of it."""
        return Result(
            self.tokens,
            self.reason or self.at_limit,
            None if self.stream is None else "".join(self.pieces),
            self.logprobs if logprobs else None,
            self.prompt_logprobs if prompt_logprobs else None,
        )

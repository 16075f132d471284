"""Text as it comes: each token gives the characters that are certain, and never half of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What decoding gives for bytes that are not yet a character."""
CONTEXT = 8
"""Tokens of the prompt before the first new one: some tokenizers decode the first token of a text differently."""


class TextStream:
    """New text of one row. The pieces of `feed` and `close` joined are the decoded continuation."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]):
        self._decode = decode
        self._ids = list(prompt[-CONTEXT:])
        self._settled = 0
        """Tokens up to here are not decoded any more."""
        self._shown = len(self._ids)
        """Tokens up to here have been given out."""

    def feed(self, token: int) -> str:
        """The characters that a token completes, "" while one is unfinished."""
        self._ids.append(token)
        text = self._pending()
        return "" if text.endswith(UNFINISHED) else self._give(text)

    def close(self) -> str:
        """What is left: bytes that never became a character show as such."""
        return self._give(self._pending())

    def _pending(self) -> str:
        before = self._decode(self._ids[self._settled : self._shown])
        return self._decode(self._ids[self._settled :])[len(before) :]

    def _give(self, text: str) -> str:
        self._settled, self._shown = self._shown, len(self._ids)
        return text

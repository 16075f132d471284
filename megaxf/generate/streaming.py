"""Text as it comes: each token gives the characters that are certain, never half of one, and nothing behind a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What decoding gives for bytes that are not yet a character."""


class TextStream:
    """New text of one row. The pieces of `feed` and `close` joined are the decoded continuation, up to a stop string.

    What may turn out to be the beginning of a stop string is held back until it is certain not to be.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stops: Sequence[str] = ()):
        """stops: strings that end the text; they are looked for in the new text alone, across tokens."""
        self._decode, self._stops = decode, stops
        # All of the prompt until the first new text: its last tokens alone may begin within a character.
        self._ids = list(prompt)
        self._settled = 0
        """Tokens up to here are not decoded any more."""
        self._shown = len(self._ids)
        """Tokens up to here have been given out, or their text is held."""
        self._held = ""
        self.stopped = False
        """Whether a stop string has come."""

    def feed(self, token: int) -> str:
        """The characters that a token completes, "" while one is unfinished."""
        self._ids.append(token)
        text = self._pending()
        return "" if text.endswith(UNFINISHED) else self._give(text)

    def close(self) -> str:
        """What is left: bytes that never became a character show as such."""
        text = self._give(self._pending())
        held, self._held = self._held, ""
        return text + held

    def _pending(self) -> str:
        before = self._decode(self._ids[self._settled : self._shown])
        return self._decode(self._ids[self._settled :])[len(before) :]

    def _give(self, text: str) -> str:
        self._settled, self._shown = self._shown, len(self._ids)
        if self.stopped:
            return ""
        text = self._held + text
        places = [place for place in map(text.find, self._stops) if place >= 0]
        self.stopped = bool(places)
        sure = min(places) if places else len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = "" if self.stopped else text[sure:]
        return text[:sure]


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of a text may be the first ones of a stop string."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)

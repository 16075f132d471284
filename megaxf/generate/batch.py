"""The rows that are computed together. There is no padding: a pass takes equally many tokens of each of its rows.

New rows read their prompts, the longest first, and leave a pass where their prompt ends; so the passes end at the ends
of prompts and after `chunk` tokens. Then every row goes on by a token a step, at its own position, until it ends and
leaves the batch to the others.
"""

from __future__ import annotations

import torch

from megaxf.generate.caches import RowCache
from megaxf.generate.forward import Forward
from megaxf.generate.rows import Row


class Batch:
    """Rows and their cache."""

    def __init__(self, forward: Forward, cache: RowCache, chunk: int, scored: bool) -> None:
        """chunk: tokens of a prompt in one pass. scored: keep the log-probabilities of prompts."""
        self._forward, self._cache, self._chunk, self._scored = forward, cache, chunk, scored
        self.rows: list[Row] = []

    def enter(self, rows: list[Row]) -> torch.Tensor:
        """Read the prompts of new rows, the longest first; logits [rows, vocab] after each."""
        first = self._cache.count
        self._cache.add(len(rows))
        self.rows += rows
        lengths = [len(row.prompt) for row in rows]
        last: list[torch.Tensor] = []
        start = 0
        while (there := len(rows) - len(last)) > 0:
            stop = min(start + self._chunk, lengths[there - 1])
            self._cache.rows = slice(first, first + there)
            pieces = [row.prompt[start:stop] for row in rows[:there]]
            hidden = self._forward.hidden(pieces, [start] * there, self._cache)
            if self._scored:
                self._score(rows[:there], hidden, start)
            ending = lengths[:there].count(stop)
            last[:0] = hidden[there - ending :, -1].unbind()
            start = stop
        return self._forward.logits(torch.stack(last))

    def step(self) -> torch.Tensor:
        """Feed the newest token of every row; logits [rows, vocab]."""
        self._cache.rows = slice(0, len(self.rows))
        newest = [[row.tokens[-1]] for row in self.rows]
        starts = [len(row.prompt) + len(row.tokens) - 1 for row in self.rows]
        return self._forward.logits(self._forward.hidden(newest, starts, self._cache)[:, -1])

    def leave(self) -> int:
        """Let go of the rows that have ended, and say how many: the last one takes the place of each."""
        before = len(self.rows)
        for place in reversed(range(len(self.rows))):
            if self.rows[place].reason is not None:
                self._cache.remove(place)
                self.rows[place] = self.rows[-1]
                self.rows.pop()
        return before - len(self.rows)

    def _score(self, rows: list[Row], hidden: torch.Tensor, start: int) -> None:
        for row, states in zip(rows, hidden, strict=True):
            targets = row.prompt[start + 1 : start + 1 + len(states)]
            scores = self._forward.score(states[: len(targets)], torch.tensor(targets, device=hidden.device))
            row.prompt_logprobs += scores.tolist()

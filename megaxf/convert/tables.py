"""Tensors under the names and in the shapes of another program, each made from its sources when it is asked for.

Rule("attn.c_attn.weight", ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"), transposed=True)

says that the other program has, wherever a name ends so, one tensor that is three of ours one below the other, and that
it is stored [in, out]. What no rule is about has one name and one shape on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from megaxf.models.weights import Weights


class Rule(NamedTuple):
    """How one kind of the other program's tensors is made of ours."""

    theirs: str
    """End of its name."""
    ours: tuple[str, ...]
    """Ends of the names of ours, which begin as its own and are joined along their first dimension."""
    transposed: bool = False


class Entry(NamedTuple):
    """What a tensor is made of: sources joined along their first dimension, turned, and a part of that."""

    sources: tuple[str, ...]
    transposed: bool = False
    part: int = 0
    parts: int = 1
    """Equal ones along the first dimension."""

    def make(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor, of its sources."""
        whole = tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors))
        whole = whole.t() if self.transposed else whole
        return whole if self.parts == 1 else whole.chunk(self.parts)[self.part]


class Made(Weights):
    """Tensors made of a source's; those of one entry's sources are in memory at a time."""

    def __init__(self, source: Weights, entries: Mapping[str, Entry]) -> None:
        self._source, self._entries = source, entries
        self.shapes = shapes_of(entries, source.shapes)

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        return entry.make([self._source[source] for source in entry.sources])

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """One tensor cut along its first dimension; of what is not turned, the pieces of its sources."""
        entry = self._entries[name]
        if entry.transposed or entry.parts > 1:
            yield from super().pieces(name)
        else:
            for source in entry.sources:
                yield from self._source.pieces(source)

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor."""
        entry = self._entries[name]
        if entry.transposed or len(entry.sources) > 1:
            return super().rows(name, first, count)
        # Equal parts follow one another.
        return self._source.rows(entry.sources[0], entry.part * self.shapes[name][0] + first, count)


def shapes_of(entries: Mapping[str, Entry], shapes: Mapping[str, torch.Size]) -> dict[str, torch.Size]:
    """The shapes of what is made of sources of these shapes."""
    blank = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return {name: entry.make([blank[source] for source in entry.sources]).shape for name, entry in entries.items()}


def to_theirs(names: Iterable[str], rules: Sequence[Rule]) -> dict[str, Entry]:
    """The other program's tensors, in the order of ours, by what of ours they are made of."""
    entries = {}
    for name in names:
        stem, rule = _rule(name, rules)
        if rule is None:
            entries[name] = Entry((name,))
        elif name.endswith(rule.ours[0]):
            entries[stem + rule.theirs] = Entry(tuple(stem + end for end in rule.ours), rule.transposed)
    return entries


def to_ours(names: Iterable[str], rules: Sequence[Rule]) -> dict[str, Entry]:
    """Our tensors of these names by what of the other program's they are made of."""
    entries = {}
    for name in names:
        stem, rule = _rule(name, rules)
        entries[name] = Entry((name,))
        if rule is not None:
            part = rule.ours.index(name[len(stem) :])
            entries[name] = Entry((stem + rule.theirs,), rule.transposed, part, len(rule.ours))
    return entries


def with_prefix(names: Iterable[str], prefix: str, head: str) -> dict[str, Entry]:
    """Their tensors by their full names, where none of the files' names has the prefix that all but the head's have."""
    names = list(names)
    bare = not any(name.startswith(prefix) for name in names)
    return {prefix + name if bare and name != head else name: Entry((name,)) for name in names}


def _rule(name: str, rules: Sequence[Rule]) -> tuple[str, Rule | None]:
    """What our name begins with, and the rule about its end; the whole name where there is none."""
    for rule in rules:
        for end in rule.ours:
            if name.endswith(f".{end}"):
                return name[: -len(end)], rule
    return name, None

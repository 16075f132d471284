"""Slurm's compressed node lists, expanded as `scontrol show hostnames` does, where there is no scontrol."""

from __future__ import annotations

import re
from itertools import product

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(nodes: str) -> list[str]:
    """`rack[1-2]-gpu[07-08,11],login` gives rack1-gpu07, rack1-gpu08, rack1-gpu11, rack2-gpu07, ..., login.

    Zeros in front are kept; later brackets count fastest. Raises ValueError for what is no node list.
    """
    names = []
    for part in _split(nodes):
        pieces = _BRACKETS.split(part)  # text, the inside of a bracket, text, ...
        if any(character in piece for piece in pieces[::2] for character in "[]"):
            raise ValueError(f"{nodes!r} is not a node list: a bracket is not closed, or stands in another")
        choices = [_numbers(piece, nodes) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        names += ["".join(chosen) for chosen in product(*choices)]
    return names


def _split(nodes: str) -> list[str]:
    """The parts between those commas that stand in no bracket."""
    parts = re.split(r",(?![^\[\]]*\])", nodes)
    if not all(parts):
        raise ValueError(f"{nodes!r} is not a node list: a name is empty")
    return parts


def _numbers(inside: str, nodes: str) -> list[str]:
    """`07-09,11` gives 07, 08, 09, 11."""
    found = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and (not last.isdecimal() or int(last) < int(first))):
            raise ValueError(
                f"{nodes!r} is not a node list: [{inside}] holds {part!r}, which is no number and no range"
            )
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found

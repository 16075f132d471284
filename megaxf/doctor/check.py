"""One question and its answer."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["good", "note", "bad"]
"""note: a run works, but slower or with less than it could. bad: a run does not start, or will end before its time."""


class Check(NamedTuple):
    """What was looked at, what was found, and what follows."""

    name: str
    found: str
    verdict: Verdict = "good"
    advice: str = ""
    """What to do where the verdict is not good."""


def judged(name: str, found: str, *faults: tuple[bool, Verdict, str]) -> Check:
    """A check with the first of the (is there, verdict, advice) that is there; good without any."""
    for there, verdict, advice in faults:
        if there:
            return Check(name, found, verdict, advice)
    return Check(name, found)

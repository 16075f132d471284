"""What decides about the samples of a run, as plain values: for the fingerprint, and to say what a resumed run changed.

A few hundred bytes of JSON, the same on every rank; while a run goes on the number of samples read changes, and shards
of a store may turn out to be damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

State = dict[str, Any]

_FIXED = {
    "split": "another split is read",
    "seed": "everything is drawn anew",
    "longest": "all rows are numbered anew, and tokens already seen may come again",
    "isolate_documents": "labels and positions change",
    "lanes": "rows come in another order, and some already seen come again",
}
"""What holds for a whole run, and what follows when it changes."""

_MOVES = ("samples", "quarantined")
"""What changes while a run goes on."""


def fingerprint(state: State) -> str:
    """Changes when a setting or the data change in a way that decides about the content of a batch."""
    decides = {name: value for name, value in state.items() if name not in _MOVES}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def describe_change(old: State, new: State) -> list[str]:
    """A sentence for each thing that differs between the run that gave `old` and the one that goes on from it."""
    sentences = [
        f"{name} was {old[name]} and is {new[name]}: {follows}"
        for name, follows in _FIXED.items()
        if old[name] != new[name]
    ]
    sentences += _sources(old["sources"], new["sources"])
    sentences += _phases(old, new)
    return sentences + _skips(old, new) + _quarantined(old, new)


def _sources(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> list[str]:
    sentences = [f"source {name} is gone" for name in sorted(old.keys() - new.keys())]
    sentences += [f"source {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        (old_data, old_rows), (new_data, new_rows) = old[name], new[name]
        if old_data != new_data:
            sentences.append(f"source {name} holds other data: its manifest was {old_data} and is {new_data}")
        if old_rows != new_rows:
            sentences.append(f"source {name} has rows made otherwise: {old_rows} before, {new_rows} now")
    return sentences


def _phases(old: State, new: State) -> list[str]:
    """Phases are lists of [first step, first sample, batch size, sequence length, weights]."""
    before, after = old["phases"], new["phases"]
    same = next((k for k, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        if len(before) == len(after):
            return []
        same = min(len(before), len(after))
    changed = min(phases[same][1] for phases in (before, after) if same < len(phases))
    was, now = (phases[same] if same < len(phases) else None for phases in (before, after))
    return [f"phases[{same}] was {_phase(was)} and is {_phase(now)}: {_follows(changed, old['samples'])}"]


def _phase(phase: list[Any] | None) -> str:
    if phase is None:
        return "not there"
    step, _, batch, length, weights = phase
    return f"(from step {step}: batch {batch}, length {length}, weights {weights})"


def _skips(old: State, new: State) -> list[str]:
    before, after = ({tuple(one) for one in state["skips"]} for state in (old, new))
    if before == after:
        return []
    first = min(first for first, _ in before ^ after)
    # Samples are numbered with the skipped ones, positions without.
    position = first - sum(last - begin + 1 for begin, last in before & after if last < first)
    return [f"skips were {sorted(before)} and are {sorted(after)}: {_follows(position, old['samples'])}"]


def _quarantined(old: State, new: State) -> list[str]:
    """Checkpoints of earlier versions, and text that is tokenised while training, know of no such shards."""
    before, after = (state.get("quarantined", {}) for state in (old, new))
    sentences = []
    for name in sorted(before.keys() | after.keys()):
        was, now = set(before.get(name, ())), set(after.get(name, ()))
        if back := sorted(was - now):
            sentences.append(
                f"source {name} is read with {', '.join(back)} again, which was left out as damaged; to go on without, "
                "copy the folder quarantine of the old run into the new one"
            )
        if out := sorted(now - was):
            sentences.append(f"source {name} goes without {', '.join(out)}, found damaged")
    return sentences


def _follows(changed: int, samples: int) -> str:
    if changed >= samples:
        return f"samples from {changed:,} on change, none of which was read yet"
    return f"{samples - changed:,} samples were read since; the run goes on as if this had held from there on"

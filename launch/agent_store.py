"""The store of torchrun's agents, of which each start of the ranks gets a part of its own.

The agents keep one store over all starts of a run (torch 2.13: their handler makes it once, and ranks put no prefix
before their keys), and what dead ranks have left there, their addresses above all, misleads those that are started
again. Counters of starts are no way out, since each agent has its own. So rank 0 draws a name for its start, and every
other rank answers with a word that it has drawn, until that very word comes back: an older rank 0 cannot know it.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from launch.launchers import Launch, fault
from launch.meeting import missing

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

START = "megaxf/start"
"""Key of the name that the newest rank 0 has drawn."""
LONGEST_PAUSE = 1.0
"""Seconds between two looks: thousands of ranks ask one store."""


def of_this_start(store: Store, launch: Launch, seconds: float) -> Store:
    """The part of the agents' store for the ranks of one start; collective.

    Raises ConfigError where ranks do not come within so many seconds.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    deadline = time.monotonic() + seconds
    name = _call(store, launch, deadline) if launch.rank == 0 else _answer(store, launch, deadline)
    return PrefixStore(f"megaxf/{name}", store)


def _call(store: Store, launch: Launch, deadline: float) -> str:
    """Rank 0: name the start, and give every other rank its word back."""
    name = _draw()
    store.set(START, name)
    for rank in range(1, launch.world_size):
        if not _comes(store, _answer_of(name, rank), deadline):
            came = [0, *(rank for rank in range(1, launch.world_size) if store.check([_answer_of(name, rank)]))]
            raise fault(missing(launch, came))
        store.set(_back(name, rank, store.get(_answer_of(name, rank)).decode()), "")
    return name


def _answer(store: Store, launch: Launch, deadline: float) -> str:
    """Other ranks: answer whoever calls last, until one gives the word back."""
    word, pause, answered = _draw(), 0.01, ""
    while time.monotonic() < deadline:
        name = store.get(START).decode() if store.check([START]) else ""
        if name != answered:
            store.set(_answer_of(name, launch.rank), word)
            answered, pause = name, 0.01
        if store.check([_back(name, launch.rank, word)]):
            return name
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    raise fault(f"rank {launch.rank} on {launch.host} has not heard of rank 0 in time; look for errors of that rank")


def _comes(store: Store, key: str, deadline: float) -> bool:
    """Wait for a key until the deadline."""
    pause = 0.001
    while not store.check([key]):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True


def _answer_of(name: str, rank: int) -> str:
    return f"megaxf/{name}/answer/{rank}"


def _back(name: str, rank: int, word: str) -> str:
    return f"megaxf/{name}/back/{rank}/{word}"


def _draw() -> str:
    return uuid.uuid4().hex

"""DeepSpeed's messages on our clock: all of them go through one object of its, which a step puts a clock beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from megaxf.parallel.clock import COMMUNICATION, Clock

MESSAGES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
"""Methods of DeepSpeed's backend that send or receive."""


@contextmanager
def timed_messages(clock: Clock, device: torch.device) -> Iterator[None]:
    """Count what DeepSpeed's messages within are waited for."""
    from deepspeed.comm import comm

    plain: Any = comm.cdb
    comm.cdb = _Backend(plain, clock, device)
    try:
        yield
    finally:
        comm.cdb = plain


class _Timed:
    """What DeepSpeed calls, with a clock beside it."""

    def __init__(self, plain: Any, clock: Clock, device: torch.device) -> None:
        self._plain, self._clock, self._device = plain, clock, device

    def _waiting(self) -> AbstractContextManager[None]:
        """Counts, but not what another stream waits for while the one that computes goes on."""
        if self._device.type == "cuda":
            streams = torch.cuda.current_stream(self._device), torch.cuda.default_stream(self._device)
            if streams[0] != streams[1]:
                return nullcontext()
        return self._clock.part(COMMUNICATION, self._device)


class _Backend(_Timed):
    """DeepSpeed's backend."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._plain, name)
        return self._counting(found) if name in MESSAGES else found

    def _counting(self, message: Callable[..., Any]) -> Callable[..., Any]:
        def send(*arguments: Any, **named: Any) -> Any:
            with self._waiting():
                work = message(*arguments, **named)
            many = isinstance(work, list)
            timed = [_Work(one, self._clock, self._device) for one in (work if many else [work]) if one is not None]
            return timed if many else next(iter(timed), None)

        return send


class _Work(_Timed):
    """A message under way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """Wait for it, counted."""
        with self._waiting():
            return self._plain.wait(*arguments, **named)

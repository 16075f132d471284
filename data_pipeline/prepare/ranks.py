"""Who am I of how many: alone, a part of an array job, or a rank of MPI.

All that they need to tell one another lies in the folder that they share, so a rank is a number, and MPI adds two
things: all begin together, and an error on one ends all. The first (number 0) decides and finishes; all encode and
assemble.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from data_pipeline.errors import DataError, unusable

Item = TypeVar("Item")


@dataclass
class Ranks:
    """One of `count` builders of the same data set."""

    rank: int = 0
    count: int = 1
    title: str = "part"

    @property
    def leads(self) -> bool:
        """Whether this one lays out the work, decides, and finishes."""
        return self.rank == 0

    def mine(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items that this one works on; the others have the rest."""
        return items[self.rank :: self.count]

    def others(self, numbers: Sequence[int]) -> str:
        """In words, whose items these are, by their numbers among all items."""
        found = sorted({number % self.count for number in numbers})
        shown = ", ".join(map(str, found[:10])) + (", ..." if len(found) > 10 else "")
        return f"{self.title}{'s' if len(found) > 1 else ''} {shown} of {self.count}"

    def meet(self) -> None:
        """Waits for all where they start together."""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing here; under MPI an error ends all ranks."""


@dataclass
class MpiRanks(Ranks):
    """A rank of an MPI job."""

    world: Any = None
    """The communicator of mpi4py."""

    def meet(self) -> None:
        """A barrier."""
        self.world.Barrier()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Says the error and ends every rank: the others would wait for this one for ever."""
        if error is None:
            return
        if isinstance(error, OSError) and error.filename:
            error = unusable(error)
        if isinstance(error, DataError):
            print(f"megaxf: error: rank {self.rank} of {self.count}: {error}", file=sys.stderr, flush=True)
        elif not isinstance(error, KeyboardInterrupt):
            traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        self.world.Abort(2 if isinstance(error, DataError) else 1)


def mpi_ranks(expected: int) -> MpiRanks:
    """This rank of the MPI job. Raises DataError when MPI cannot be used, or sees other ranks than the launcher tells.

    expected: the number of ranks by the launcher.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DataError(
            f"mpirun started {expected} ranks, but mpi4py cannot be used ({str(error).splitlines()[0]}); "
            "install it with an MPI library, or start an array job with --part K/N"
        ) from None
    world = MPI.COMM_WORLD
    if world.Get_size() != expected:
        raise DataError(
            f"mpirun started {expected} ranks, but mpi4py sees {world.Get_size()}: it has loaded the library of "
            "another MPI; name mpirun's own in MPI4PY_LIBMPI, or start an array job with --part K/N"
        )
    return MpiRanks(world.Get_rank(), expected, "rank", world)


def part_of(text: str) -> Ranks:
    """`K/N`, K from 0: a part of an array job. Raises DataError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise DataError(f"--part {text} is not K/N with K from 0 to N - 1, such as 0/8 and 7/8")
    return Ranks(int(found[1]), int(found[2]))

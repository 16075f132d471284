"""What all ranks have to decide alike: faults on one rank, and wishes of one rank. Every function is collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from megaxf.parallel.collectives import gather_objects, sum_numbers
from megaxf.parallel.mesh import Mesh

Result = TypeVar("Result")


def agreed(mesh: Mesh, work: Callable[[], Result]) -> Result:
    """What `work` gives on this rank; collective. A fault of the user's on any rank is raised on all: the first one.

    `work` itself must not be collective, and its errors must pickle.
    """
    result, fault = attempt(work)
    raise_first(mesh, fault)
    assert result is not None or fault is None
    return result  # type: ignore[return-value]


def attempt(work: Callable[[], Result]) -> tuple[Result | None, ValueError | None]:
    """(what `work` gives, the fault of the user's that it met); other errors pass through."""
    try:
        return work(), None
    except ValueError as error:
        if not getattr(error, "user_fault", False):
            raise
        return None, error


def raise_first(mesh: Mesh, fault: ValueError | None) -> None:
    """Raise the fault of the lowest rank that has one, on every rank; collective."""
    for found in gather_objects(fault, mesh):
        if found is not None:
            raise found


def any_rank(mesh: Mesh, device: torch.device, *flags: bool) -> list[bool]:
    """Each flag, true where it is on any rank: one tiny message; collective."""
    return [count > 0 for count in sum_numbers([float(flag) for flag in flags], mesh.everyone, device)]

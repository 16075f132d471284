"""Work that all ranks share and whose failure on one rank is an error on all, so that none is left waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from megaxf.checkpoint.errors import CheckpointError
from megaxf.parallel.collectives import broadcast_object, gather_objects
from megaxf.parallel.mesh import Mesh

Result = TypeVar("Result")


def attempt(work: Callable[[], Result]) -> tuple[Result | None, CheckpointError | None]:
    """(what `work` gives, why it failed)."""
    try:
        return work(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:
        return None, CheckpointError(f"{type(error).__name__}: {error}")


def together(mesh: Mesh, work: Callable[[], Result]) -> list[Result]:
    """The results of `work` on all ranks, in rank order; collective, and a barrier. They are to be small.

    `work` itself must not be collective. Raises CheckpointError on every rank where it fails on any.
    """
    outcomes = gather_objects(attempt(work), mesh)
    for rank, (_, failed) in enumerate(outcomes):
        if failed is not None:
            raise type(failed)(f"rank {rank}: {failed}" if mesh.world_size > 1 else str(failed))
    return [result for result, _ in outcomes]


def on_first(mesh: Mesh, work: Callable[[], Result]) -> Result:
    """What `work` gives on rank 0, on every rank; collective. Raises as `together` does."""
    nothing: tuple[Any, CheckpointError | None] = None, None
    result, failed = broadcast_object(attempt(work) if mesh.rank == 0 else nothing, mesh)
    if failed is not None:
        raise type(failed)(f"rank 0: {failed}" if mesh.world_size > 1 else str(failed))
    return result

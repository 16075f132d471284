"""Work that all ranks share and whose failure on one rank is an error on all, so that none is left waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from megaxf.checkpoint.errors import CheckpointError
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh

Result = TypeVar("Result")


def together(mesh: Mesh, work: Callable[[], Result]) -> list[Result]:
    """The results of `work` on all ranks, in rank order; collective, and a barrier.

    `work` itself must not be collective. Raises CheckpointError on every rank where it fails on any.
    """
    result: Result | None = None
    failure: CheckpointError | None = None
    try:
        result = work()
    except CheckpointError as error:
        failure = error
    except Exception as error:
        failure = CheckpointError(f"{type(error).__name__}: {error}")
    outcomes = gather_objects((result, failure), mesh)
    for rank, (_, failed) in enumerate(outcomes):
        if failed is not None:
            raise type(failed)(f"rank {rank}: {failed}" if mesh.world_size > 1 else str(failed))
    return [result for result, _ in outcomes]


def on_first(mesh: Mesh, work: Callable[[], Result]) -> Result:
    """What `work` gives on rank 0, on every rank; collective, and a barrier. Raises as `together` does."""
    return together(mesh, lambda: work() if mesh.rank == 0 else None)[0]  # type: ignore[return-value]

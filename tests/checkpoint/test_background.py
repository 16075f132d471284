"""A flow's own code runs when all ranks have done their part; a failure of one rank's thread is an error on all."""

import threading

import pytest

from megaxf.checkpoint import Background, CheckpointError, run_flow
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import build_mesh


def flow(mesh, works, cleaned):
    """Yields a work at a time and gathers what all ranks found."""
    found = []
    try:
        for work in works:
            mine = yield work
            found.append(gather_objects(mine, mesh))
    except CheckpointError as error:
        cleaned.append(str(error))
        raise CheckpointError(f"given up: {error}") from error
    return found


def test_work_runs_in_a_thread_and_the_rest_in_the_main_one(mesh):
    gate = threading.Event()
    works = [lambda: gate.wait(10) and threading.current_thread().name, lambda: "second"]
    background = Background(mesh, flow(mesh, works, []))
    assert background.busy() and not background.done
    gate.set()
    assert background.finish()[0][0].startswith("checkpoint") and background.done and not background.busy()
    background.advance()  # of no effect
    assert background.finish()[1] == ["second"]
    assert run_flow(mesh, flow(mesh, works, []))[0] == [threading.current_thread().name]


def fail_on_rank_1():
    mesh, cleaned = build_mesh(), []

    def second():
        if mesh.rank == 1:
            raise OSError("no such disk")
        return mesh.rank

    background = Background(mesh, flow(mesh, [lambda: mesh.rank, second, lambda: "never"], cleaned))
    try:
        background.finish()
    except CheckpointError as error:
        return str(error), cleaned, background.done
    return None


def test_a_failure_reaches_all_ranks(ranks2):
    message = "rank 1: OSError: no such disk"
    assert ranks2(fail_on_rank_1) == [(f"given up: {message}", [message], True)] * 2


def test_the_errors_own_class_is_kept(mesh):
    class Special(CheckpointError):
        pass

    def fail():
        raise Special("x")

    with pytest.raises(CheckpointError, match="given up: x"):
        run_flow(mesh, flow(mesh, [fail], []))

"""Work of all ranks in stages: what talks to other ranks in the main thread, what writes files beside it.

A flow is a generator. What it does itself is collective. What it yields is work of this rank alone, whose result it is
given when every rank has done its own; where one has failed, CheckpointError is raised in the flow of every rank. So no
second thread ever communicates, and the ranks agree on a stage whenever they talk anyway.

    flow = Background(mesh, save_flow(...))       # collective
    while training:
        ...
        if not any_rank(flow.busy()):             # the message that the ranks exchange each step
            flow.advance()                        # collective
    flow.finish()                                 # collective
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.ranks import attempt, together
from megaxf.parallel.mesh import Mesh

Result = TypeVar("Result")
Flow = Generator[Callable[[], Any], Any, Result]
Submit = Callable[[Callable[[], Any]], Future[Any]]


def run_flow(mesh: Mesh, flow: Flow[Result]) -> Result:
    """A flow from its start to its end, the work of each stage in this thread; collective."""
    return Background(mesh, flow, _here).finish()


class Background(Generic[Result]):
    """A flow on its way; every method but `busy` is collective, and raises what the flow raises."""

    def __init__(self, mesh: Mesh, flow: Flow[Result], submit: Submit | None = None) -> None:
        self._mesh, self._flow = mesh, flow
        self._submit = submit or ThreadPoolExecutor(1, thread_name_prefix="checkpoint").submit
        self._result: list[Result] = []
        self._stage = self._start(lambda: next(flow))

    @property
    def done(self) -> bool:
        """Whether it has come to its end; the same on every rank."""
        return self._stage is None

    def busy(self) -> bool:
        """Whether this rank's work of the stage goes on; not collective."""
        return self._stage is not None and not self._stage.done()

    def advance(self) -> None:
        """Go on to the next stage, waiting for this rank's work of the present one."""
        stage, self._stage = self._stage, None
        if stage is None:
            return
        result, failure = stage.result()
        try:
            together(self._mesh, lambda: _give(failure))
        except CheckpointError as error:
            self._stage = self._start(lambda error=error: self._flow.throw(error))  # type: ignore[misc]
        else:
            self._stage = self._start(lambda: self._flow.send(result))

    def finish(self) -> Result:
        """Wait for the end, and give what the flow gives."""
        while not self.done:
            self.advance()
        return self._result[0]

    def _start(self, resume: Callable[[], Callable[[], Any]]) -> Future[Any] | None:
        try:
            work = resume()
        except StopIteration as end:
            self._result.append(end.value)
            return None
        return self._submit(lambda: attempt(work))


def _here(work: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(work())
    return done


def _give(failure: CheckpointError | None) -> None:
    if failure is not None:
        raise failure

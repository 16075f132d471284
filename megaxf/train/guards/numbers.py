"""Loss and gradient that are not finite, and spikes of the loss: what is found in a step, and what is done about it.

A spike is a loss that lies further above the median of those before it than their robust spread allows:

    (loss - median) / max(1.4826 x MAD, 0.005 x |median|) >= threshold

with MAD the median absolute deviation, which for normal noise is 1 / 1.4826 of its standard deviation, and which a few
spikes do not move. Losses of the learning rate's warm-up and of an earlier phase of the data do not count.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

import torch

from megaxf.config import Run
from megaxf.config_data import portion_at
from megaxf.config_guards import REWIND
from megaxf.engine import StepResult
from megaxf.parallel.mesh import Mesh
from megaxf.train.guards.agreement import any_rank

NORMAL = 1.4826
LEAST_SPREAD = 0.005
"""Of the median: a loss that hardly varies makes no spike of every change."""

Kind = Literal["non_finite", "spike"]
Steps = tuple[int, int]
"""First and last."""


class Finding(NamedTuple):
    """What is wrong with a step, and what is to be done: record, stop, skip or rewind-and-skip-data."""

    found: Kind
    limit: float
    """What the loss was to be below."""
    action: str
    why: str = ""
    """Why it is not the policy's."""
    passed_over: Steps | None = None
    """The steps whose data is passed over by rewinding."""

    @property
    def ends(self) -> bool:
        """Whether the run does not go on from here."""
        return self.action in ("stop", REWIND)


class LossWindow:
    """The losses of the last steps and the limit that they set."""

    def __init__(self, size: int, threshold: float) -> None:
        self.losses: deque[float] = deque(maxlen=size)
        self._threshold = threshold

    def limit(self) -> float:
        """The least loss that is a spike; infinite while the window is not half full."""
        if 2 * len(self.losses) < (self.losses.maxlen or 0):
            return math.inf
        middle = median(self.losses)
        spread = NORMAL * median(abs(loss - middle) for loss in self.losses)
        return middle + self._threshold * max(spread, LEAST_SPREAD * abs(middle))


class NumberGuard:
    """Judges each step by the policies of `run.guards`.

    What it knows is kept in checkpoints, so that a run that goes on decides as one that was never stopped.
    """

    def __init__(self, run: Run[Any], passed_over: Sequence[Steps] = (), skipped: Sequence[Steps] = ()) -> None:
        """passed_over: by rewinding before. skipped: with it, what `data.skip_steps` of the run before it asked for."""
        self._run, self._settings = run, run.guards
        self._window = LossWindow(run.guards.spike_window, run.guards.spike_threshold)
        self._skips = 0
        self.passed_over = list(passed_over)
        """Steps whose data was passed over by rewinding, each range numbered as `data.skip_steps` is."""
        self.skip_steps = join(run.data.skip_steps, list(skipped), self.passed_over)
        """All ranges that the run passes over, in the order by which they are numbered."""

    def limit(self, step: int) -> float | None:
        """What the engine is to refuse in this step; None where no policy wants a step to change nothing."""
        if portion_at(self._run, step).from_step == step:
            self._window.losses.clear()
        if self._settings.on_spike in ("stop", "skip"):
            return self._window.limit()
        return math.inf if self._settings.on_non_finite == "skip" else None

    def judge(
        self, step: int, result: StepResult, newest: Callable[[], int], mesh: Mesh, device: torch.device
    ) -> Finding | None:
        """What is wrong with a step that was made; collective, and the same on every rank. None: nothing.

        newest: the step of the newest checkpoint, 0 where there is none; collective.
        """
        limit = self._window.limit()
        wrong = not is_sound(result), result.refused or not result.loss < limit
        non_finite, spike = any_rank(mesh, device, *wrong)
        if not non_finite and (not spike or self._settings.on_spike == "record"):
            self._learn(step, result.loss)
        if not (non_finite or spike):
            self._skips = 0
            return None
        kind: Kind = "non_finite" if non_finite else "spike"
        policy = self._settings.on_non_finite if non_finite else self._settings.on_spike
        checkpoint_step = 0 if policy == "record" else newest()
        if why := self._forbidden(policy, checkpoint_step):
            return Finding(kind, limit, "stop", why)
        if policy == REWIND:
            steps = max(checkpoint_step, step - self._settings.rewind_batches) + 1, step
            self.passed_over.append(steps)
            self.skip_steps.append(steps)
            return Finding(kind, limit, policy, passed_over=steps)
        self._skips += policy == "skip"
        return Finding(kind, limit, policy)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"losses": list(self._window.losses), "skips": self._skips, "passed_over": self.passed_over}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from such values. What was passed over since they were saved stays passed over."""
        self._window.losses.clear()
        self._window.losses.extend(state["losses"])
        self._skips = state["skips"]

    def _learn(self, step: int, loss: float) -> None:
        if step > self._run.schedule.warmup_steps:
            self._window.losses.append(loss)

    def _forbidden(self, policy: str, checkpoint_step: int) -> str:
        """Why the policy cannot be followed any more, if so."""
        settings = self._settings
        if policy == "skip" and self._skips >= settings.max_skips:
            return f"guards.max_skips = {settings.max_skips} steps in a row were skipped before it"
        if policy == REWIND and len(self.passed_over) >= settings.max_rewinds:
            return f"the run was rewound guards.max_rewinds = {settings.max_rewinds} times before"
        if policy == REWIND and not checkpoint_step:
            return "there is no checkpoint yet to go back to"
        return ""


def is_sound(result: StepResult) -> bool:
    """Whether a step's numbers are finite, but for the gradient of a step that was passed over."""
    passed_over = result.skipped or (result.refused and math.isfinite(result.loss + result.z_loss))
    numbers = (result.loss, result.z_loss) if passed_over else (result.loss, result.z_loss, result.grad_norm)
    return all(map(math.isfinite, numbers))


def explain(finding: Finding, step: int, loss: float, checkpoint_step: int, skip_steps: Sequence[Steps] = ()) -> str:
    """What to say about a step. checkpoint_step: of the newest checkpoint. skip_steps: of the run so far."""
    if finding.found == "non_finite":
        what = f"loss or gradient of step {step} is not finite"
    else:
        what = f"the loss of step {step} is a spike: {loss:.4f}, and {finding.limit:.4f} or more is one"
    if finding.action == "record":
        return f"{what}; guards.on_spike = record, so the run goes on"
    if finding.action == "skip":
        return f"{what}; the step is skipped: no update is made from its batch"
    if finding.passed_over:
        first, last = finding.passed_over
        return (
            f"{what}; all ranks go back to the checkpoint of step {checkpoint_step} and pass over the data of steps "
            f"{first} to {last}"
        )
    # Each range is numbered by a run with those before it: to add one, a user has to repeat them.
    skipped = [list(one) for one in (*skip_steps, (step, step))]
    return (
        f"{what}{f', and {finding.why}' if finding.why else ''}: all ranks stop here and save nothing; the newest "
        f"checkpoint is of step {checkpoint_step}. Start again with a lower optimizer.learning_rate, a longer warm-up, "
        f"or other data (data.skip_steps='{skipped}'), or let guards.on_{finding.found} do so"
    )


def join(asked: list[Steps], skipped: list[Steps], passed_over: list[Steps]) -> list[Steps]:
    """All ranges that a run passes over, in the order by which they are numbered.

    asked: by `data.skip_steps` now. skipped: all that the run passed over so far; passed_over: those of them that are
    from rewinding. Whoever adds a range has read its steps in the log of a run without all of `skipped`, be that
    repeated in full or without what is from rewinding.
    """
    if asked[: len(skipped)] == skipped:
        return list(asked)
    own = list(reversed(skipped))
    for steps in reversed(passed_over):
        if steps in own:
            own.remove(steps)
    own.reverse()
    return [*skipped, *asked[len(own) :]] if asked[: len(own)] == own else [*asked, *passed_over]


def without(run: Run[Any], skip_steps: Sequence[Steps]) -> Run[Any]:
    """The run with these as its `data.skip_steps`."""
    return run.model_copy(update={"data": run.data.model_copy(update={"skip_steps": list(skip_steps)})})

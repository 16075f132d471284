"""The factor on fp16's loss that keeps small gradients above the smallest number (arXiv 1710.03740, section 3.2).

DeepSpeed has one of its own, which cannot be used: in the step that doubles it, it divides the gradient by the new
factor instead of the one that the gradient was made with (and with ZeRO 3 reports half of the norm).
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST = 2.0**16
"""The factor of a fresh run."""
PATIENCE = 1000
"""Steps without an overflow after which the factor is doubled."""


class LossScale:
    """Halved, but not below 1, by a step that overflowed; doubled after PATIENCE steps that did not."""

    def __init__(self) -> None:
        self.value = FIRST
        self._steps = 0

    def counters(self) -> dict[str, float]:
        """The factor, and the steps since it last changed or an overflow came: what a checkpoint holds of it."""
        return {"loss_scale": self.value, "loss_scale_steps": self._steps}

    def go_on(self, counters: Mapping[str, float]) -> None:
        """Take up what `counters` gave; what is not there (a run in another precision) starts anew."""
        self.value = counters.get("loss_scale", FIRST)
        self._steps = int(counters.get("loss_scale_steps", 0))

    def update(self, overflowed: bool) -> bool:
        """Take note of a step; gives whether a smaller factor may help it."""
        can_fall = self.value > 1
        self._steps = 0 if overflowed else self._steps + 1
        if overflowed and can_fall:
            self.value /= 2
        elif self._steps == PATIENCE:
            self.value, self._steps = 2 * self.value, 0
        return overflowed and can_fall

"""How a run ends: the exit code of the command."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """How a run ended; the exit code of the command."""

    DONE = 0
    """Trained to the last step, or was so already."""
    DIVERGED = 3
    """Loss or gradient were not finite, the loss spiked, or replicas differ; nothing was saved after it."""
    LOST = 69
    """A rank died or stood still, so that all were ended: starting again goes on from the newest checkpoint."""
    STOPPED = 75
    """Asked to stop, and saved: starting again continues (sysexits' EX_TEMPFAIL)."""

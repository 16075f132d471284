"""What can be wrong with a question to the planner."""

from __future__ import annotations


class PlanError(ValueError):
    """A question that has no answer, or data that cannot give one; the message says why and what to do."""

    user_fault = True
    """Printed by the command line without a traceback."""

"""What keeps a run of weeks sound, and ends it where it cannot be: stops, numbers, replicas, ranks.

Whatever is decided, all ranks decide it alike and in the same step.
"""

from megaxf.train.guards.agreement import agreed, any_rank, attempt, raise_first
from megaxf.train.guards.outcome import Outcome
from megaxf.train.guards.stop import Requests, Signals

__all__ = ["Outcome", "Requests", "Signals", "agreed", "any_rank", "attempt", "raise_first"]

"""What the time of a step went for, on this rank: the clock's parts as a user knows them.

    data              waiting for the batch
    forward_backward  both passes, without what they wait for other ranks
    communication     standing still for messages between ranks: gradients, weights, tensor and context parallelism,
                      the neighbours of a pipeline stage and so its idle time, and ranks that come late
    optimizer         the update
    checkpoint        what a checkpoint stopped the run for since the step before, be it for a copy of the state only
    other             the rest: guards, records, the program itself

All but what a checkpoint took between the steps add up to the step's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from megaxf.parallel.clock import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER

DATA, CHECKPOINT = "data", "checkpoint"
PARTS = {
    DATA: (DATA,),
    "forward_backward": (FORWARD, BACKWARD),
    COMMUNICATION: (COMMUNICATION,),
    OPTIMIZER: (OPTIMIZER,),
    CHECKPOINT: (CHECKPOINT,),
}
"""What it is called -> parts of the clock."""
OTHER = "other"


def breakdown(parts: Mapping[str, float], seconds: float, saving: float) -> dict[str, float]:
    """Seconds by name. seconds: of the step. saving: what a checkpoint has taken since the step before."""
    times = {name: sum(parts.get(part, 0.0) for part in own) for name, own in PARTS.items()}
    times[OTHER] = max(0.0, seconds - sum(parts.values()))
    times[CHECKPOINT] += saving
    return times

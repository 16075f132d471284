"""The ledger of one rank: every item that it holds, and the most that it holds at one time.

for ledger in ledgers(load_run("run.yaml", world_size=64), 64):     # one for each pipeline stage
    print(ledger.peak(), ledger.rows)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from megaxf.plan.memory.activations import activation_rows
from megaxf.plan.memory.job import Job, jobs
from megaxf.plan.memory.passing import loss_rows, workspace_rows
from megaxf.plan.memory.rows import GROUPS, STEP, Row, row
from megaxf.plan.memory.states import state_rows

MIB = 2**20
CONTEXT = 768 * MIB
"""Of the driver's context and the libraries' code, in a process that uses a GPU: 0.5 to 1 GiB are usual."""
COMMUNICATOR = 320 * MIB
"""Of NCCL, for each group of ranks: 0.2 to 0.5 GiB are usual."""
MATRIX_WORKSPACE = 32 * MIB
"""Of cuBLAS on Hopper, for each handle and stream (PyTorch's default)."""
FRAGMENTATION = 20
"""The allocator's slack is one part in so many of what it has given out: 3 to 10 % are usual."""

NOT_COUNTED = (
    "tensors that live within one kernel or operation only",
    "what torch.compile does otherwise than torch 2.13 did on one rank: it chooses itself what layers keep",
    "the batch itself and the data loader's queue",
    "what checkpoints copy to the host while they are written",
)


@dataclass(frozen=True)
class Ledger:
    """The rows of one rank of one pipeline stage."""

    stage: int
    rows: tuple[Row, ...]

    def at(self, moment: str, group: str | None = None) -> int:
        """Bytes on the device at a moment of the step, of one group of rows or of all that are counted."""
        return sum(
            row.bytes
            for row in self.rows
            if row.place == "device"
            and moment in row.when
            and (row.group == group if group else row.group != "allowance")
        )

    @property
    def moment(self) -> str:
        """When the most is held."""
        return max(STEP, key=self.at)

    @property
    def peak(self) -> int:
        """The most that is held on the device at one time, allowances apart."""
        return self.at(self.moment)

    @property
    def allowances(self) -> int:
        """What libraries and the allocator need beside it."""
        return self.at(self.moment, "allowance")

    def off_device(self, place: str) -> int:
        """Bytes on the "host" or on "nvme"."""
        return sum(row.bytes for row in self.rows if row.place == place)


def ledgers(run: Any, world_size: int, device: str = "cuda") -> list[Ledger]:
    """The ledger of each pipeline stage of a megaxf.config.Run over `world_size` ranks, which the run has to fit.

    device: "cuda" or "cpu".
    """
    return [ledger(job, stage) for stage, job in enumerate(jobs(run, world_size, device))]


def ledger(job: Job, stage: int = 0) -> Ledger:
    """The ledger of one rank."""
    rows = [*state_rows(job), *activation_rows(job), *loss_rows(job), *workspace_rows(job)]
    rows = [row for group in GROUPS for row in rows if row.group == group and row.bytes]
    counted = Ledger(stage, tuple(rows))
    return Ledger(stage, (*counted.rows, *_allowances(job, counted.peak)))


def _allowances(job: Job, peak: int) -> Iterator[Row]:
    if job.device == "cpu":
        return
    yield row("allowance", "context and libraries", CONTEXT)
    if groups := job.communicators:
        yield row("allowance", "NCCL", COMMUNICATOR, (groups, "groups of ranks"))
    yield row("allowance", "cuBLAS workspace", MATRIX_WORKSPACE)
    yield row("allowance", "fragmentation", (peak, "of the peak"), over=FRAGMENTATION)

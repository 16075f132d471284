"""The batches of a rank as a `torch.utils.data.IterableDataset`, for training loops that are not ours.

    dataset = TokenIterableDataset(batches, rank=3, ranks=8, global_batch_size=64)
    dataset.load_state_dict(state)                        # where another run, of any number of ranks, has stopped
    for batch in DataLoader(dataset, batch_size=None):    # or without a DataLoader
        logits = model(batch["tokens"])                   # [8, sequence_length], with batch["labels"] beside them
        state = dataset.state_dict()

This is the only module of data_pipeline that needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.ring import Request, Ring
from data_pipeline.loader.share import DataShare
from data_pipeline.loader.state import State, describe_change

_FIELDS = ("tokens", "labels", "positions", "document_ids")


class TokenIterableDataset(IterableDataset[dict[str, torch.Tensor]]):
    """This rank's part of one global batch after the other, without end.

    A batch is a dict of int64 tensors [rows, sequence_length]: tokens, labels (the token after each, -100 where it does
    not count) and, with isolated documents, positions and document_ids; and next_sample, a number: how many samples the
    run has read with this batch.

    The state is that number and what decides about the order, a few hundred bytes, the same on every rank. So a run
    resumes exactly, on as many ranks as it likes.
    """

    def __init__(
        self,
        batches: Batches,
        rank: int = 0,
        ranks: int = 1,
        global_batch_size: int | None = None,
        accept_changes: bool = False,
    ):
        """global_batch_size: over all ranks; where the order has phases, these say it. accept_changes: a state of other
        data or of another order may be loaded. Raises DataError."""
        if (global_batch_size is None) != bool(batches.order.phases):
            raise DataError(
                f"global_batch_size = {global_batch_size} and {len(batches.order.phases)} phases; give a batch size or "
                "phases, which have one each"
            )
        self.batches, self._share, self._size = batches, DataShare(rank, ranks), global_batch_size
        self._accept_changes, self._samples = accept_changes, 0
        for phase in batches.phases.phases:
            self._share.block(0, global_batch_size or phase.global_batch_size)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """From the position of the state on. Raises DataError where several workers would read the same rows."""
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise DataError(
                f"num_workers = {worker.num_workers}: every worker would read all rows of the rank, which one thread "
                "reads faster than workers could send them; use num_workers=0, or 1"
            )
        with Ring(self.batches, self._requests(self._samples)) as ring:
            for request, batch in ring:
                arrays = {name: array for name, array in batch._asdict().items() if name in _FIELDS}
                found = {name: torch.tensor(array) for name, array in arrays.items() if array is not None}
                ring.release()
                self._samples += request.rows * self._share.ranks
                yield found | {"next_sample": torch.tensor(self._samples)}

    def state_dict(self, next_sample: int | torch.Tensor | None = None) -> State:
        """Where the run stands after the last batch that was given out.

        next_sample: that of the last batch trained on. It must be given where a worker of a plain DataLoader reads,
        since this object then sees nothing of it; torchdata's StatefulDataLoader asks the worker itself.
        """
        return self.batches.state(self._samples if next_sample is None else int(next_sample))

    def load_state_dict(self, state: State) -> None:
        """Iterating begins where a run with this state has stopped. Raises DataError where it had other data or another
        order, unless such changes are accepted."""
        changes = describe_change(state, self.batches.state(state["samples"]))
        if changes and not self._accept_changes:
            raise DataError(f"the state is of another run: {'; '.join(changes)}; load it with accept_changes=True")
        self._samples = state["samples"]

    def _requests(self, sample: int) -> Iterator[Request]:
        phases = self.batches.phases
        begins = [(phases.step(phase.first_step).first_sample, phase) for phase in phases.phases]
        while True:
            _, phase = max((pair for pair in begins if pair[0] <= sample), key=lambda pair: pair[0])
            size = self._size or phase.global_batch_size
            yield Request(*self._share.block(sample, size), phase.sequence_length)
            sample += size


def pinned(shape: tuple[int, int]) -> Int64:
    """Memory for a `Ring` from which a GPU copies while the program goes on."""
    return torch.empty(shape, dtype=torch.int64, pin_memory=True).numpy()

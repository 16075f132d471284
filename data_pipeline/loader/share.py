"""What a rank reads of a step: the r-th of R equal blocks of its samples, for rank r of the R along the data axis.

Ranks that differ along other axes read the same rows themselves: a row costs some microseconds of a thread and pages
that a node has once, which is less than any message. So context ranks cut their columns out of whole rows, of which the
masks need the document ids anyway; and an inner stage of a pipeline reads what it needs of them, which is documents,
positions and how many labels count. Only the ids would be spared there, and the batch would have two shapes.
"""

from __future__ import annotations

from typing import NamedTuple

from data_pipeline.errors import DataError


class DataShare(NamedTuple):
    """A place on the data axis."""

    rank: int = 0
    ranks: int = 1

    def block(self, first_sample: int, global_batch_size: int) -> tuple[int, int]:
        """(first sample, how many) of this rank's part of a batch. Raises DataError where it has no equal parts."""
        count, rest = divmod(global_batch_size, self.ranks)
        if rest or not 0 <= self.rank < self.ranks:
            raise DataError(
                f"rank {self.rank} of {self.ranks} has no equal share of global_batch_size = {global_batch_size}; use "
                "ranks from 0 on, and a batch that their number divides"
            )
        return first_sample + self.rank * count, count

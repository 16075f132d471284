"""What DeepSpeed asks about the mesh, in the words of Megatron-LM's model parallel unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from megaxf.parallel.mesh import Mesh


@dataclass(frozen=True)
class ModelParallelUnit:
    """Answers for the mesh of one rank.

    Data-parallel are to DeepSpeed the ranks that hold the same weights: it cuts its states and sums gradients over
    data and context. Model-parallel are those of the tensor axis: it sums the square of the gradient norm over them,
    counting on the ranks other than the first the parameters with `tensor_model_parallel` set.
    """

    mesh: Mesh

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same weights."""
        return self.mesh.replicas.group

    def get_data_parallel_world_size(self) -> int:
        """Their number."""
        return self.mesh.replicas.size

    def get_data_parallel_rank(self) -> int:
        """Place of this rank among them."""
        return self.mesh.replicas.rank

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold one copy of the weights together."""
        return self.mesh.axis("tensor").group

    def get_model_parallel_world_size(self) -> int:
        """Their number."""
        return self.mesh.axis("tensor").size

    def get_model_parallel_rank(self) -> int:
        """Place of this rank among them."""
        return self.mesh.axis("tensor").rank

"""A stand-in for an engine: it holds fp32 tensors by name and knows nothing else."""

import pytest
import torch

from megaxf.parallel.boxes import PARTS, Piece
from megaxf.parallel.mesh import build_mesh

SHAPES = {"model.embed_tokens.weight": (33, 7), "model.norm.weight": (7,), "lm_head.weight": (33, 7)}


class Holder:
    """What a checkpoint asks of an engine, with random weights and moments."""

    def __init__(self, seed=0, shapes=SHAPES, moments=True, optimizer_step=3):
        generator = torch.Generator().manual_seed(seed)
        parts = ("master", "exp_avg", "exp_avg_sq") if moments else ("master",)
        self.tensors = {
            name: {part: torch.randn(shape, generator=generator) for part in parts} for name, shape in shapes.items()
        }
        self.optimizer_step = optimizer_step

    def state_shapes(self):
        return {name: parts["master"].shape for name, parts in self.tensors.items()}

    def counters(self):
        return {"optimizer_step": self.optimizer_step}

    def pieces(self):
        for name, parts in self.tensors.items():
            for part in PARTS:
                tensor = parts.setdefault(part, torch.zeros_like(parts["master"]))
                yield Piece(name, part, (0,) * tensor.dim(), tensor)

    def loaded(self, counters):
        self.optimizer_step = counters["optimizer_step"]

    def equals(self, other):
        mine = {(name, part): tensor for name, parts in self.tensors.items() for part, tensor in parts.items()}
        theirs = {(name, part): tensor for name, parts in other.tensors.items() for part, tensor in parts.items()}
        same_keys = mine.keys() == theirs.keys() and self.optimizer_step == other.optimizer_step
        return same_keys and all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())


@pytest.fixture
def holder():
    return Holder


@pytest.fixture
def mesh():
    return build_mesh()

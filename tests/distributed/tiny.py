"""A model and a run to train within tests.

No two dimensions are equal and many are odd, so that ZeRO shares are padded; rows have unequal numbers of targets.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from megaxf.config import Run, validate
from megaxf.engine import Engine, StepResult, TorchBatch, create, micro_batches
from megaxf.engine.state import read_whole
from megaxf.parallel.boxes import PARTS
from megaxf.parallel.mesh import Mesh, build_mesh

MODEL = {
    "vocab_size": 61,
    "hidden_size": 33,
    "intermediate_size": 45,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
SEQUENCE = 18
ROWS = 8


def tiny_run(model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Run[Any]:
    """A validated run; `sections` override the defaults key by key, and so does a model that names no family."""
    model = model or {}
    settings: dict[str, Any] = {
        "run_folder": "unused",
        "seed": 7,
        "model": model if "family" in model else MODEL | model,
        "data": {"sources": {"text": {"folder": "unused"}}, "sequence_length": SEQUENCE},
        "train": {"steps": 20, "global_batch_size": ROWS, "micro_batch_size": 2, "precision": "fp32"},
        "optimizer": {"learning_rate": 1e-3},
        "engine": {"zero_stage": 0},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return validate(settings, "tests")


@functools.cache
def _mesh(world_size: int, degrees: tuple[tuple[str, int], ...], order: tuple[str, ...]) -> Mesh:
    """Groups stay for the life of a process, so each kind of mesh is made once."""
    return build_mesh(dict(degrees), order)


def tiny_mesh(run: Run[Any]) -> Mesh:
    """The mesh of a run's layout over all ranks; collective."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return _mesh(ranks, tuple(run.parallel.degrees().items()), tuple(run.parallel.order))


def tiny_engine(run: Run[Any], mesh: Mesh | None = None) -> Engine:
    """A fresh engine on the CPU; collective."""
    return create(run, mesh or tiny_mesh(run), "cpu")


def global_batch(step: int, run: Run[Any] | None = None) -> TorchBatch:
    """The whole batch of a step, by default of 18 tokens a row.

    Row r counts its last 1 + (5 r + step) mod length targets. Isolated documents are of random lengths from 1.
    """
    length = run.data.sequence_length if run else SEQUENCE
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(61, (ROWS, length + 1), generator=generator)
    labels = ids[:, 1:].clone()
    for row in range(ROWS):
        labels[row, : length - 1 - (5 * row + step) % length] = -100
    batch = TorchBatch(ids[:, :-1].contiguous(), labels, samples=torch.arange(ROWS) + step * ROWS)
    if not (run and run.data.isolate_documents):
        return batch
    starts, places = torch.rand(ROWS, length, generator=generator) < 0.25, torch.arange(length)
    positions = places - torch.where(starts, places, 0).cummax(1).values
    return batch._replace(document_ids=starts.cumsum(1), positions=positions)


def own_rows(batch: TorchBatch, mesh: Mesh | None = None) -> TorchBatch:
    """This rank's share of a global batch: the block of rows of its place on the data axis."""
    mesh = mesh or tiny_mesh(tiny_run())
    share = len(batch.tokens) // mesh.data_size
    rows = slice(mesh.data_rank * share, (mesh.data_rank + 1) * share)
    return TorchBatch(*(None if part is None else part[rows] for part in batch))


def train_steps(engine: Engine, run: Run[Any], steps: range, learning_rate: float = 1e-3) -> list[StepResult]:
    """Train on the global batches of `steps`."""
    size, mesh = run.train.micro_batch_size, tiny_mesh(run)
    return [engine.train_step(micro_batches(own_rows(global_batch(s, run), mesh), size), learning_rate) for s in steps]


def read_all(engine: Engine) -> dict[str, dict[str, torch.Tensor]]:
    """The whole state by parameter name, with moments from the first update on; collective."""
    return read_whole(engine, engine._placed.mesh, "cpu", PARTS if engine.optimizer_step else PARTS[:1])  # type: ignore[attr-defined]


def write_all(engine: Engine, state: dict[str, dict[str, torch.Tensor]], step: int | None = None) -> None:
    """Set the state of the parameters that are named, without moments to start anew; collective.

    step: updates made so far, by default as many as before.
    """
    for piece in engine.pieces():
        if piece.name in state:
            whole = state[piece.name].get(piece.part)
            piece.values.copy_(piece.box_in(whole) if whole is not None else torch.zeros(()))
    engine.loaded(engine.counters() if step is None else {"optimizer_step": step})

"""Numbers of groups of layers in one step: is a part of the model about to leave the others?

    gradient_norm   of the gradient of the group's weights, before clipping
    update_ratio    length of the update over the length of the weights that it is made to, both of the fp32 masters
    activation_rms  root mean square of the residual stream after the layers, over their outputs in all forward passes

They are those of the whole model in any layout: what each rank holds is summed up, each element once. A step is not
changed by being looked at. Nothing of the size of the model is held: the update follows from AdamW's state after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from megaxf.config import Optimizer, Run
from megaxf.engine.batch import TorchBatch
from megaxf.engine.protocol import Engine, StepResult
from megaxf.parallel.boxes import PARTS, Piece
from megaxf.parallel.collectives import sum_tensor

CHUNK = 1 << 22
"""Elements that are looked at at a time."""
GRADIENT, UPDATE, WEIGHT, ACTIVATION, OUTPUTS = range(5)
"""Rows of the sums: squares of four, and the number of elements of the fourth."""


class GroupNumbers(NamedTuple):
    """What is said of a group; see the head of this module."""

    gradient_norm: float
    update_ratio: float
    """0 where the step changed nothing."""
    activation_rms: float | None
    """None where the group has no layer."""


class Groups:
    """The embedding, neighbouring layers, and the head with the final norm: at most so many groups of layers."""

    def __init__(self, model: Any, layers: int, most: int) -> None:
        """model: the family's, of which a rank may hold a part. layers: of the whole model."""
        self._size = -(-layers // most)
        ends = [(first, min(first + self._size, layers) - 1) for first in range(0, layers, self._size)]
        spans = [f"layers.{first}" if first == last else f"layers.{first}-{last}" for first, last in ends]
        self.names = ["embedding", *spans, "head"]
        self._layers = f"{model.layers_name}."
        self._before = tuple(f"{name}." for name in model.before_layers)

    def of_layer(self, index: int) -> int:
        """Which group a layer is in."""
        return 1 + index // self._size

    def of_parameter(self, name: str) -> int:
        """Which group a parameter is in; a table that is tied is in the embedding."""
        if name.startswith(self._layers):
            return self.of_layer(int(name.removeprefix(self._layers).partition(".")[0]))
        return 0 if name.startswith(self._before) else len(self.names) - 1


class Statistics:
    """Makes steps of an engine and looks at them."""

    def __init__(self, engine: Engine, run: Run[Any], device: torch.device) -> None:
        self._engine, self._settings, self._device = engine, run.optimizer, device
        self._model, self._mesh = engine.placed.model, engine.placed.mesh
        self._groups = Groups(self._model, run.model.num_hidden_layers, run.metrics.layer_groups)
        self._sums = torch.zeros(5, len(self._groups.names), dtype=torch.float64, device=device)

    def train_step(
        self, micro_batches: Sequence[TorchBatch], learning_rate: float, loss_limit: float | None = None
    ) -> tuple[StepResult, dict[str, GroupNumbers]]:
        """The engine's step, and the numbers of each group by its name; collective."""
        self._sums.zero_()
        updates = self._engine.optimizer_step
        with self._watching():
            result = self._engine.train_step(micro_batches, learning_rate, loss_limit, self._see_gradient)
        if self._engine.optimizer_step > updates:
            self._see_update(learning_rate)
        rows = sum_tensor(self._sums, self._mesh.everyone).T.tolist()
        return result, {name: _numbers(row) for name, row in zip(self._groups.names, rows, strict=True)}

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Look at what the layers put out. Ranks with equal outputs all count them, which leaves the mean as it is."""
        with ExitStack() as stack:
            for index, layer in self._model.layers.named_children():
                see = self._seeing(self._groups.of_layer(int(index)))
                stack.callback(_show_outputs(layer, see))
            yield

    def _seeing(self, group: int) -> Callable[[torch.Tensor], None]:
        def see(hidden: torch.Tensor) -> None:
            self._sums[ACTIVATION, group] += square_sum(hidden.detach())
            self._sums[OUTPUTS, group] += hidden.numel()

        return see

    def _see_gradient(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.copy == 0:
                self._sums[GRADIENT, self._groups.of_parameter(piece.name)] += square_sum(piece.values)

    def _see_update(self, learning_rate: float) -> None:
        shapes, count = self._engine.state_shapes(), self._engine.optimizer_step
        box: dict[str, torch.Tensor] = {}
        for piece in self._engine.pieces():
            if piece.copy:
                continue
            box[piece.part] = piece.values
            if len(box) == len(PARTS):  # the parts of a box come one after the other
                squares = update_squares(box, self._settings, learning_rate, count, len(shapes[piece.name]) > 1)
                self._sums[UPDATE : WEIGHT + 1, self._groups.of_parameter(piece.name)] += squares
                box = {}


def _show_outputs(layer: torch.nn.Module, see: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Show what a layer puts out; returns what ends it.

    A hook of a compiled layer would be compiled into it, or never be called.
    """
    compiled: Any = layer._compiled_call_impl
    if compiled is None:
        return layer.register_forward_hook(lambda layer, given, hidden: see(hidden)).remove

    def call(*given: Any) -> torch.Tensor:
        hidden: torch.Tensor = compiled(*given)
        see(hidden)
        return hidden

    layer._compiled_call_impl = call
    return lambda: setattr(layer, "_compiled_call_impl", compiled)


def by_number(groups: Mapping[str, GroupNumbers]) -> dict[str, dict[str, float]]:
    """The other way about: "gradient_norm" -> group -> value; where there is none a group is left out."""
    found: dict[str, dict[str, float]] = {}
    for group, numbers in groups.items():
        for name, value in numbers._asdict().items():
            if value is not None:
                found.setdefault(name, {})[group] = value
    return found


def update_squares(
    box: dict[str, torch.Tensor], settings: Optimizer, learning_rate: float, count: int, decays: bool
) -> torch.Tensor:
    """Sums of the squares [2] of the last update of a box, and of its weights before it.

    box: masters and moments after the update. count: updates with it. decays: whether weight decay was part of it.
    """
    beta1, beta2 = settings.betas
    step_size, root = learning_rate / (1 - beta1**count), math.sqrt(1 - beta2**count)
    shrink = learning_rate * settings.weight_decay * decays
    squares = torch.zeros(2, dtype=torch.float64, device=box["master"].device)
    for master, mean, square in zip(*(_chunks(box[part]) for part in PARTS), strict=True):
        adam = mean / (square.sqrt().div_(root).add_(settings.eps)) * step_size
        before = (master + adam).div_(1 - shrink)
        squares += torch.stack([square_sum(adam.add_(before, alpha=shrink)), square_sum(before)])
    return squares


def square_sum(values: torch.Tensor) -> torch.Tensor:
    """The sum of the squares, in fp64."""
    sums = [torch.linalg.vector_norm(chunk, dtype=torch.float64).square() for chunk in _chunks(values)]
    return torch.stack(sums).sum()


def _chunks(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Rows of at most CHUNK elements together, or one row."""
    return values.split(max(1, CHUNK // max(1, values[0].numel()))) if values.dim() else [values]


def _numbers(sums: Sequence[float]) -> GroupNumbers:
    gradient, update, weight, activation, outputs = sums
    return GroupNumbers(
        gradient_norm=math.sqrt(gradient),
        update_ratio=math.sqrt(update / weight) if weight else 0.0,
        activation_rms=math.sqrt(activation / outputs) if outputs else None,
    )

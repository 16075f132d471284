"""Tensor parallelism (arXiv 1909.08053) and, between its regions, sequence parallelism (arXiv 2205.05198).

A column-parallel matrix gives each rank some of the outputs, the row-parallel matrix after it takes them as some of its
inputs, and the ranks' results are summed. Between such pairs ranks do the same work; with sequence parallelism each
does it for its share of the sequence, and the sum becomes a reduce-scatter whose counterpart is an all-gather.

The twins below take the place of the model's own modules by its TENSOR_PLAN and hold plain local tensors.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from megaxf.models.dropout import Dropout
from megaxf.models.linear import Embedding, Linear
from megaxf.models.matmul import add_mm, linear, mm
from megaxf.parallel.autograd import reduce_from, scatter_to, start_gather, start_reduce, start_scatter
from megaxf.parallel.cut import Cut
from megaxf.parallel.mesh import Axis, subaxis


class Region(NamedTuple):
    """How the tensor-parallel ranks share the work."""

    axis: Axis
    sequence: bool
    """Whether each holds a share of the sequence outside of the matrices."""

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's share [batch, seq/tp] of what each token has, [batch, seq]."""
        return x.chunk(self.axis.size, dim=1)[self.axis.rank]

    def leave(self, x: torch.Tensor) -> torch.Tensor:
        """The ranks' parts [batch, seq, hidden] of a sum -> the sum, or this rank's share of its sequence."""
        return scatter_to(x, self.axis) if self.sequence else reduce_from(x, self.axis)


class ColumnLinear(Linear):
    """Some rows of the weight [out/tp, in]: some of the outputs."""

    region: Region

    def beside(self, x: torch.Tensor, *others: Linear) -> list[torch.Tensor]:
        """[batch, seq, in], with sequence parallelism [batch, seq/tp, in] -> [batch, seq, out/tp] of each."""
        maps = (self, *others)
        return list(_Columns.apply(x, self.region, *(m.weight for m in maps), *(m.bias for m in maps)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `beside`, alone."""
        return self.beside(x)[0]


class RowLinear(Linear):
    """Some columns of the weight [out, in/tp]: a part of every output."""

    region: Region

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, in/tp] -> [batch, seq, out], with sequence parallelism [batch, seq/tp, out]"""
        y = self.region.leave(linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabEmbedding(Embedding):
    """Some rows of the table [vocab/tp, hidden]: the embeddings of some tokens, 0 for the others."""

    region: Region

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, seq] -> [batch, seq, hidden], with sequence parallelism [batch, seq/tp, hidden]"""
        places = tokens - self.region.axis.rank * self.num_embeddings
        elsewhere = (places < 0) | (places >= self.num_embeddings)
        rows = F.embedding(places.masked_fill(elsewhere, 0), self.weight)
        return self.region.leave(rows.masked_fill(elsewhere[..., None], 0.0))


class ShareDropout(Dropout):
    """Dropout on this rank's share of the sequence."""

    region: Region

    def forward(self, x: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """x: [batch, seq/tp, hidden]; keys: of the whole sequence [batch, seq]"""
        return super().forward(x, None if keys is None else self.region.share(keys))


class ShareEmbedding(Embedding):
    """A whole table, for the tokens of this rank's share of the sequence."""

    region: Region

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Rows of the table [batch, seq] -> [batch, seq/tp, hidden]"""
        return super().forward(self.region.share(places))


class _Columns(torch.autograd.Function):
    """The outputs of several column-parallel maps of one input, with the communication behind the products.

    Kept is the input as it came, a share of the sequence where it is one: the backward pass gathers it again.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, region: Region, *parameters: Any) -> tuple[torch.Tensor, ...]:
        weights, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
        ctx.region = region
        ctx.save_for_backward(x, *weights)
        whole = start_gather(x, region.axis).wait() if region.sequence else x
        return tuple(linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        axis, sequence = ctx.region
        gathering = start_gather(x, axis) if sequence else None
        summed = _input_gradient(gradients, weights)
        whole = gathering.wait() if gathering else x
        summing = start_scatter(summed, axis) if sequence else start_reduce(summed, axis)
        flat = whole.flatten(0, 1)
        of_weights = [mm(gradient.flatten(0, 1).t(), flat) for gradient in gradients]
        needed = ctx.needs_input_grad[2 + len(weights) :]
        of_biases = [g.sum((0, 1)) if wanted else None for g, wanted in zip(gradients, needed, strict=True)]
        return summing.wait(), None, *of_weights, *of_biases


def _input_gradient(gradients: tuple[torch.Tensor, ...], weights: list[torch.Tensor]) -> torch.Tensor:
    """The sum of gradient_i @ weight_i, [batch, seq, in]."""
    flat = mm(gradients[0].flatten(0, 1), weights[0])
    for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
        add_mm(flat, gradient.flatten(0, 1), weight)
    return flat.unflatten(0, gradients[0].shape[:2])


TWINS: dict[tuple[str, type[nn.Module]], type[nn.Module]] = {
    ("column", Linear): ColumnLinear,
    ("row", Linear): RowLinear,
    ("vocab", Embedding): VocabEmbedding,
    ("vocab", Linear): Linear,
}
"""Kind in TENSOR_PLAN and class of a module -> its parallel twin."""
SHARING: dict[tuple[str, type[nn.Module]], type[nn.Module]] = {
    ("sequence", Dropout): ShareDropout,
    ("sequence", Embedding): ShareEmbedding,
}
"""The same, of what has another twin where ranks share the sequence only."""


def apply_tensor(model: Any, plan: Mapping[str, str], axis: Axis, sequence: bool) -> None:
    """Swap the modules of a model on the meta device for twins of which each holds this rank's share.

    plan: the family's TENSOR_PLAN.
    """
    region = Region(axis, sequence)
    cuts = tensor_cuts(model, plan, axis.size)
    twins = TWINS | SHARING if sequence else TWINS
    for name, kind in list(planned(model, plan)):
        module: Any = model.get_submodule(name)
        twin = twins.get((kind, type(module)))
        if twin is None:
            continue
        module.__class__ = twin
        module.region = region
        for key, weight in list(module.named_parameters(recurse=False)):
            share = nn.Parameter(cuts[f"{name}.{key}"].take(weight.detach(), axis))
            setattr(module, key, share)
        _resize(module)


def _resize(module: Any) -> None:
    """Bring what a module says of its size to what it holds."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings = module.weight.shape[0]


def planned(model: nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, kind) of every module that a pattern of the plan names."""
    for name, _ in model.named_modules():
        for pattern, kind in plan.items():
            if fnmatch.fnmatchcase(name, pattern):
                yield name, kind


def partial_gradients(model: Any, plan: Mapping[str, str], axis: Axis, sequence: bool) -> dict[str, Axis]:
    """The parameters of which each rank computes a part of the gradient, and the ranks whose parts make it whole.

    With their own heads: norms over heads. With their share of the sequence: what works on the residual stream. With
    other query heads of the same group: keys and values that several ranks hold. Collective.
    """
    kinds = dict(planned(model, plan))
    cuts = tensor_cuts(model, plan, axis.size)
    copies = {cut.parts: subaxis(axis, axis.size // cut.parts) for cut in cuts.values() if 1 < cut.parts < axis.size}
    copies[1] = axis
    partial = {}
    for name in cuts:
        kind, cut = kinds[name.rpartition(".")[0]], cuts[name]
        on_shares = sequence and (kind == "sequence" or (kind == "row" and name.endswith("bias")))
        if kind == "heads" or on_shares or (kind == "column" and cut.parts < axis.size):
            partial[name] = copies[cut.parts]
    return partial


def tensor_cuts(model: Any, plan: Mapping[str, str], ranks: int) -> dict[str, Cut]:
    """How each parameter of a whole model is cut over so many ranks, by its name."""
    kinds = dict(planned(model, plan))
    cuts = {}
    for name, weight in model.named_parameters():
        module, _, key = name.rpartition(".")
        cuts[name] = _cut(kinds[module], key, weight.shape, _equal_units(model, module), ranks)
    return cuts


def _equal_units(model: Any, module: str) -> int | None:
    """Into how many parts a column-parallel matrix may be cut at most: key/value heads stay whole."""
    return model.config.num_key_value_heads if module.endswith(model.key_value_projections) else None


def _cut(kind: str, key: str, shape: torch.Size, units: int | None, ranks: int) -> Cut:
    if ranks == 1 or kind in ("sequence", "heads") or (kind == "row" and key == "bias"):
        return Cut()
    dim = 1 if kind == "row" else 0
    parts = min(ranks, units or ranks)
    return Cut(dim, parts, -(-shape[dim] // parts))

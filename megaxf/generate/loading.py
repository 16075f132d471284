"""A model with its weights, ready to generate: whole, this rank's share of it, or spread over devices and the disk."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from megaxf.generate.errors import GenerateError
from megaxf.models.matmul import for_one_row
from megaxf.models.registry import family
from megaxf.models.weights import Weights
from megaxf.parallel.mesh import Axis
from megaxf.parallel.tensor import apply_tensor, tensor_cuts


def load(
    config: Any,
    weights: Weights,
    dtype: torch.dtype,
    device: torch.device | str,
    axis: Axis | None = None,
    *,
    one_row: bool = False,
) -> Any:
    """A model in `dtype` on `device`; weights are read one at a time.

    axis: the tensor axis over which it is cut; `generate` needs it too. Collective along it.
    one_row: that rows will be continued one at a time, for which fp32 on a CPU has a faster layout in memory.
    Raises GenerateError where it cannot be cut so, KeyError where a weight is missing.
    """
    model, cuts = _blank(config, dtype), None
    if axis is not None and axis.size > 1:
        _check_cut(config, axis.size)
        plan = family(config.family).TENSOR_PLAN
        cuts = tensor_cuts(model, plan, axis.size)
        apply_tensor(model, plan, axis, sequence=False)
    for name, module, key in _parameters(model):
        whole = weights[name]
        share = whole if cuts is None or axis is None else cuts[name].take(whole, axis)
        share = share.to(device, dtype, copy=True, memory_format=torch.contiguous_format)
        _set(module, key, for_one_row(share) if one_row and share.dim() == 2 else share)
    if cuts is None:
        for module in model.modules():
            if hasattr(module, "join"):
                module.join()
    return model.eval()


def spread(config: Any, weights: Weights, dtype: torch.dtype, max_memory: Mapping[int | str, int] | None = None) -> Any:
    """A model over all GPUs, then the memory of the host, then the disk, by accelerate's device map.

    What lies on the disk is read from the source's own files whenever a pass comes to it, and dropped again.
    max_memory: bytes by GPU number and "cpu"; by default what is free.
    Raises GenerateError where what cannot be spread is too large: embeddings, output matrix, and one layer.
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_max_memory

    model = _blank(config, dtype)
    budget = get_max_memory(None if max_memory is None else dict(max_memory))
    main = next(iter(budget))
    layers = model.layers
    outside = _bytes(model) - _bytes(layers)
    needed = outside + max(map(_bytes, layers))
    if budget[main] < needed:
        raise GenerateError(
            f"max-memory {main} = {budget[main]:,} bytes is too little: embeddings, output matrix and one layer "
            f"need {needed:,}"
        )
    budget[main] -= outside
    placed = infer_auto_device_map(
        layers, budget, no_split_module_classes=[type(layers[0]).__name__], clean_result=False
    )
    names = {id(module): name for name, module in model.named_modules()}
    places = {names[id(layer)]: placed[str(number)] for number, layer in enumerate(layers)}
    places |= dict.fromkeys(_modules_outside(model), main)
    resident: dict[str, torch.Tensor] = {}
    for name, module, key in _parameters(model):
        place = next(place for prefix, place in places.items() if name.startswith(f"{prefix}."))
        if place == "cpu" and main != "cpu":
            resident[name] = weights[name].to(dtype, copy=True)
        elif place != "disk":
            _set(module, key, weights[name].to(place, dtype, copy=True))
    elsewhere = ChainMap(resident, _Cast(weights, dtype))  # type: ignore[arg-type]
    return dispatch_model(model, places, main_device=main, state_dict=elsewhere, offload_index={}).eval()


class _Cast(Mapping[str, torch.Tensor]):
    """The weights in another dtype, read when asked for."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _blank(config: Any, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        return family(config.family).Model(config, dtype=dtype)


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(name in the model, module, name there) of every parameter."""
    for prefix, module in model.named_modules():
        for key, _ in list(module.named_parameters(recurse=False)):
            yield f"{prefix}.{key}", module, key


def _set(module: nn.Module, key: str, value: torch.Tensor) -> None:
    setattr(module, key, nn.Parameter(value, requires_grad=False))


def _modules_outside(model: Any) -> list[str]:
    """Names of the modules with parameters that belong to no layer."""
    inside = {id(module) for module in model.layers.modules()}
    found = [(name, module) for name, module in model.named_modules() if id(module) not in inside]
    return [name for name, module in found if next(module.parameters(recurse=False), None) is not None]


def _bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters())


def _check_cut(config: Any, ranks: int) -> None:
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    sizes = {"num_attention_heads": heads, "intermediate_size": config.intermediate_size}
    for name, size in sizes.items():
        if size % ranks:
            raise GenerateError(f"{ranks} processes do not divide model.{name} = {size}; start fewer")
    if keys % ranks and ranks % keys:
        raise GenerateError(
            f"{ranks} processes neither divide model.num_key_value_heads = {keys} nor are a multiple of it; "
            "start another number"
        )

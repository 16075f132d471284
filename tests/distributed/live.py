"""How many bytes of tensors live, now and at most, by watching every operation."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Inside, counts the storages of tensors that operations make, from their birth to their end."""

    def __init__(self, least: int = 0) -> None:
        """least: bytes of the smallest storage that counts."""
        super().__init__()
        self._least = least
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            self._see(storage, is_view=storage._cdata in given)
        return out

    def _see(self, storage: Any, is_view: bool) -> None:
        key = storage._cdata
        if key not in self._sizes:
            if is_view or storage.nbytes() < self._least:  # a view here is one of a tensor from outside
                return
            weakref.finalize(storage, self._end, key)
        self._count(storage.nbytes() - self._sizes.get(key, 0))
        self._sizes[key] = storage.nbytes()

    def _end(self, key: int) -> None:
        self._count(-self._sizes.pop(key))

    def _count(self, change: int) -> None:
        self.now += change
        self.peak = max(self.peak, self.now)


def _storages(tree: Any) -> list[Any]:
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"]
    return [tensor.untyped_storage() for tensor in tensors]

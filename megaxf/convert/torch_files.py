"""Files of torch.save that other programs made, read without importing or running anything of theirs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from megaxf.convert.errors import ConvertError


class StandIn:
    """An object of a class of another program, which is not here: what it was made of, and its attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """Take attributes up, where the class keeps its state so."""
        if isinstance(state, dict):
            self.__dict__.update(state)


def read_torch_file(path: Path) -> Any:
    """The content of a file, its tensors still on the disk, every object of a class that torch does not vouch for as
    a `StandIn`.

    Raises ConvertError where it is missing, damaged or of the format before torch 1.6.
    """
    try:
        # Read off the pickle's instructions; none is carried out.
        names = get_unsafe_globals_in_checkpoint(str(path))
        with safe_globals([(StandIn, name) for name in names]):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise ConvertError(f"{path} is missing") from None
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise ConvertError(f"{path} is no sound file of torch.save: {brief(error)}") from None


def brief(error: Exception) -> str:
    """The first line of what an error says, or its name."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def save(content: Any, path: Path) -> None:
    """Write a file, its folder made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)

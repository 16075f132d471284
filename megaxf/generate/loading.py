"""A model with its weights, ready to generate: from a checkpoint's tensors, or from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from megaxf.models.llama import Config, Model


class Weights(Protocol):
    """Tensors by name."""

    def __getitem__(self, name: str) -> torch.Tensor:
        """One tensor; raises KeyError for an unknown name."""
        ...


def from_weights(config: Config, weights: Weights, dtype: torch.dtype, device: torch.device | str) -> Model:
    """A model in `dtype` on `device` with the weights given, read one at a time.

    Raises KeyError where one is missing.
    """
    with torch.device(device):
        model = Model(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    return model.eval()


def from_folder(config: Config, folder: str | Path, dtype: torch.dtype, device: torch.device | str) -> Model:
    """A model in `dtype` on `device` with the safetensors of a folder, through accelerate: no copy beside the model."""
    from accelerate import init_empty_weights, load_checkpoint_in_model

    with init_empty_weights():
        model = Model(config, dtype=dtype)
    load_checkpoint_in_model(model, str(folder), device_map={"": device}, dtype=dtype)
    return model.eval()

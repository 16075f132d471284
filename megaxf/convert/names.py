"""The parameters of a model by name, and the comparison with those of a file."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from megaxf.convert.errors import ConvertError
from megaxf.models.registry import ModelConfig, family

HEADS = ("lm_head.weight", "embed_out.weight")
"""Output matrices, of models where they are not the embedding table."""


def parameter_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """The parameters that a model of this configuration has; no memory is taken."""
    with torch.device("meta"):
        model = family(config.family).Model(config)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def check_names(found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size], where: str) -> None:
    """Raises ConvertError with every tensor that is missing, not known, or of another shape."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is not part of the model" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(found[name])}, the configuration says {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        advice = ""
        if any(head in wanted and head not in found for head in HEADS):
            advice = "if output and input embeddings are one matrix, config.json has to say tie_word_embeddings: true"
        raise ConvertError.listing(f"the tensors of {where} are not those of its configuration", problems, advice)

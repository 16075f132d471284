"""How llama.cpp has the tensors of each model: architecture, tensors that are one there, and the order of rows.

| model                        | architecture | queries, keys and values                                        |
|------------------------------|--------------|-----------------------------------------------------------------|
| Llama, Mistral               | llama        | of queries and keys, pairs of dimensions that turn are neighbours |
| Qwen2                        | qwen2        | as here                                                         |
| Qwen3                        | qwen3        | as here                                                         |
| GPT-2                        | gpt2         | one matrix: all queries, all keys, all values                   |
| GPT-NeoX, Pythia             | gptneox      | the same; here each head has its three together                 |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf_settings import needs_table
from megaxf.convert.tables import Rule, to_theirs
from megaxf.models.weights import Weights

KINDS = (".weight", ".bias")


class Swap(NamedTuple):
    """Another order of a tensor's rows, which are seen as a block of four dimensions: the inner two change places."""

    outer: int
    first: int
    second: int
    inner: int

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows in the other order."""
        return rows.view(*self, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

    @property
    def back(self) -> Swap:
        """What undoes it."""
        return Swap(self.outer, self.second, self.first, self.inner)


class Layout(NamedTuple):
    """A model as llama.cpp has it."""

    architecture: str
    rules: tuple[Rule, ...] = ()
    """What is one tensor there; see `tables`."""
    swaps: Mapping[str, Swap] = {}
    """Tensors with another order of rows, by the end of their name."""


class Swapped(Weights):
    """The same tensors, some with another order of rows: those are whole in memory."""

    def __init__(self, weights: Weights, swaps: Mapping[str, Swap]) -> None:
        self._weights, self._swaps, self.shapes = weights, swaps, weights.shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        swap = self._swap(name)
        return self._weights[name] if swap is None else swap.apply(self._weights[name])

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """One tensor, cut where its rows stay where they are."""
        if self._swap(name) is None:
            yield from self._weights.pieces(name)
        else:
            yield self[name]

    def _swap(self, name: str) -> Swap | None:
        return next((swap for end, swap in self._swaps.items() if name.endswith(end)), None)


def library() -> Any:
    """The package gguf. Raises ConvertError where it is not installed."""
    try:
        import gguf
    except ImportError:
        raise ConvertError('GGUF needs the package gguf; run pip install "megaxf[gguf]"') from None
    return gguf


def names_in_file(layout: Layout, wanted: Mapping[str, torch.Size], layers: int) -> dict[str, str]:
    """The names in a file by those that Hugging Face has, of a model whose tensors are `wanted`.

    Raises ConvertError for a tensor that the architecture has not.
    """
    gguf = library()
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == layout.architecture)
    known = gguf.get_tensor_name_map(kind, layers)
    found = {source: known.get_name(source, try_suffixes=KINDS) for source in to_theirs(wanted, layout.rules)}
    problems = [f"{source} has no name in {layout.architecture}" for source, name in found.items() if name is None]
    if problems:
        raise ConvertError.listing("the model cannot be written as GGUF", problems)
    return found


def layout_of(config: Any) -> Layout:
    """How llama.cpp has a model. Raises ConvertError where it has nothing that computes the same."""
    if config.family not in ARCHITECTURES:
        raise ConvertError(f"model.family = {config.family} is not written to GGUF, only {', '.join(ARCHITECTURES)}")
    return in_architecture(ARCHITECTURES[config.family](config), config)


def in_architecture(name: str, config: Any) -> Layout:
    """How a model lies in a file of an architecture, whether or not it is the one that we write it in."""
    if name == "gpt2":
        fused = [Rule(f"attn.c_attn{kind}", tuple(f"attn.{x}_proj{kind}" for x in "qkv")) for kind in KINDS]
        return Layout(name, rules=tuple(fused))
    if name == "gptneox":
        by_kind = Swap(1, config.num_attention_heads, 3, config.head_dim)
        return Layout(name, swaps={f"query_key_value{kind}": by_kind for kind in KINDS})
    if name == "llama":
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        swaps = {f"{part}{kind}": neighbours(n, config.head_dim) for part, n in heads.items() for kind in KINDS}
        return Layout(name, swaps=swaps)
    return Layout(name)


def neighbours(heads: int, head_dim: int) -> Swap:
    """The two halves of each head's dimensions as pairs: 0, d/2, 1, d/2 + 1 ..."""
    return Swap(heads, 2, head_dim // 2, 1)


def _llama(config: Any) -> str:
    if config.attention_bias and config.qk_norm:
        raise ConvertError("llama.cpp has no architecture with both biases (model.attention_bias) and model.qk_norm")
    if config.qk_norm and needs_table(config):
        raise ConvertError(
            "model.rope_scaling: llama.cpp's qwen3 has no table of frequencies, which this stretch needs"
        )
    # qwen2 has neither heads of another size nor a table of frequencies; llama has both, and biases where they are.
    regular = config.num_attention_heads * config.head_dim == config.hidden_size and not needs_table(config)
    return "qwen3" if config.qk_norm else "qwen2" if config.attention_bias and regular else "llama"


def _gpt2(config: Any) -> str:
    return "gpt2"


def _gpt_neox(config: Any) -> str:
    if not config.attention_bias:
        raise ConvertError("llama.cpp has no GPT-NeoX without biases (model.attention_bias = false)")
    if config.tie_word_embeddings:
        raise ConvertError("llama.cpp has no GPT-NeoX with one table for both ends (model.tie_word_embeddings = true)")
    return "gptneox"


ARCHITECTURES = {"llama": _llama, "gpt2": _gpt2, "gpt_neox": _gpt_neox}
"""By the family's name."""

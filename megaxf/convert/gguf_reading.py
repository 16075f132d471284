"""A GGUF file as a model: what `gguf` and others have written of the architectures that `gguf_layouts` knows.

Quantised tensors are taken for what they stand for: their values come in fp32, as the `gguf` package computes them.
"""

from __future__ import annotations

import atexit
import math
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from megaxf.convert import casting
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf_layouts import Layout, Swapped, in_architecture, library, names_in_file
from megaxf.convert.gguf_reading_tokenizer import eos_ids, write_tokenizer
from megaxf.convert.gguf_settings import FREQUENCIES
from megaxf.convert.interface import Trained
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.convert.settings import make_config
from megaxf.convert.tables import Made, shapes_of, to_ours, to_theirs
from megaxf.models.registry import ModelConfig, config_type
from megaxf.models.rope_scaling import Llama3Scaling, plain_frequencies
from megaxf.models.weights import Weights

MAGIC = b"GGUF"
FLOATS = {"F16": "float16", "BF16": "bfloat16"}
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
FAMILIES = {"llama": "llama", "qwen2": "llama", "qwen3": "llama", "gpt2": "gpt2", "gptneox": "gpt_neox"}
"""Families by llama.cpp's architecture."""
LLAMA3 = {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""Settings of all published Llama 3 models: a file has the frequencies alone that come of them."""


class File:
    """A file's settings and tensors. Raises ConvertError where it is not sound."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = library().GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
            raise ConvertError(f"{path} is no sound GGUF file: {error}") from None
        self._fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture: str = self.value("general.architecture", "none")

    def value(self, key: str, default: Any = None) -> Any:
        """A setting; numbers in fp32 become the shortest ones that are those."""
        if key not in self._fields:
            return default
        found = self._fields[key].contents()
        return float(str(np.float32(found))) if isinstance(found, float) else found

    def of_model(self, key: str, default: Any = None) -> Any:
        """A setting of the architecture."""
        return self.value(f"{self.architecture}.{key}", default)

    def shape(self, name: str) -> torch.Size:
        """Of a tensor; the file says it from behind."""
        return torch.Size(int(size) for size in reversed(self.tensors[name].shape))

    def read(self, name: str) -> torch.Tensor:
        """A tensor in fp32. Raises ConvertError where the package cannot compute its values."""
        found = self.tensors[name]
        try:
            return torch.from_numpy(np.array(library().dequantize(found.data, found.tensor_type), dtype=np.float32))
        except NotImplementedError:
            kind = found.tensor_type.name
            raise ConvertError(f"{self.path}: {name} is in {kind}, which the package gguf does not decode") from None


class _Tensors(Weights):
    """The tensors of a file under Hugging Face's names."""

    def __init__(self, file: File, names: dict[str, str]) -> None:
        """names: those in the file by Hugging Face's."""
        self._file, self._names = file, names
        self.shapes = {source: file.shape(name) for source, name in names.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._file.read(self._names[name])


def weights_of(file: File, config: ModelConfig, layout: Layout) -> Weights:
    """Our tensors of a file, in fp32. Raises ConvertError where it has others than the model's, or of other shapes."""
    wanted = parameter_shapes(config)
    names = names_in_file(layout, wanted, config.num_hidden_layers)
    sources = {name: source for source, name in names.items()}
    found = {sources.get(name, name): file.shape(name) for name in file.tensors if name != FREQUENCIES}
    check_names(found, shapes_of(to_theirs(wanted, layout.rules), wanted), str(file.path))
    theirs = Swapped(_Tensors(file, names), {end: swap.back for end, swap in layout.swaps.items()})
    return Made(theirs, to_ours(wanted, layout.rules))


def recognises(path: Path) -> bool:
    """Whether a path is a GGUF file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Trained:
    """The model of a file; tensors are read when asked for.

    Raises ConvertError where the file is damaged, or its architecture, settings, tensors or tokenizer are not known.
    """
    file = File(path)
    if file.architecture not in FAMILIES:
        raise ConvertError(f"{path}: architecture {file.architecture!r} is not read, only {', '.join(FAMILIES)}")
    config = read_config(file)
    weights = weights_of(file, config, in_architecture(file.architecture, config))
    folder = Path(mkdtemp(prefix="megaxf-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = folder if write_tokenizer(file.value, folder, str(path)) else None
    return Trained(config, weights, tokenizer, _dtype(file), eos_ids(file.value), path, "gguf")


def read_config(file: File) -> ModelConfig:
    """The Config of a file. Raises ConvertError with all that is missing or that megaxf has not."""
    name = FAMILIES[file.architecture]
    problems = [f"{file.architecture}.{key} is missing" for key in SIZES.values() if file.of_model(key) is None]
    problems += [
        f"{file.architecture}.{key} = {value!r} is no number above 0"
        for key in SIZES.values()
        if not isinstance(value := file.of_model(key, 1), int) or value < 1
    ]
    problems += [f"{file.architecture}.{key} is not supported" for key in ("expert_count",) if file.of_model(key)]
    if problems or "token_embd.weight" not in file.tensors:
        raise ConvertError.listing(
            f"{file.path} is not a model of megaxf", problems or ["token_embd.weight is missing"]
        )
    fields = {ours: file.of_model(key) for ours, key in SIZES.items()}
    fields |= {"family": name, "vocab_size": file.shape("token_embd.weight")[0]}
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors
    fields |= _llama(file, fields) if name == "llama" else _gpt(file, fields)
    config: ModelConfig = make_config(config_type(name), fields)
    return config


def _llama(file: File, fields: dict[str, Any]) -> dict[str, Any]:
    heads, theta = fields["num_attention_heads"], file.of_model("rope.freq_base", 10000.0)
    head_dim = file.of_model("attention.key_length", fields["hidden_size"] // heads)
    _check_rope(file, {"rope.dimension_count": head_dim, "rope.scale_linear": 1, "rope.scaling.yarn_ext_factor": 1})
    window = file.of_model("attention.sliding_window")
    return {
        "num_key_value_heads": file.of_model("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": file.of_model("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": theta,
        "rope_scaling": _scaling(file, head_dim, theta),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "sliding_window": window if window and window < fields["max_position_embeddings"] else None,
    }


def _gpt(file: File, fields: dict[str, Any]) -> dict[str, Any]:
    found = {"layer_norm_eps": file.of_model("attention.layer_norm_epsilon", 1e-5)}
    if file.architecture == "gpt2":
        return found
    head_dim = fields["hidden_size"] // fields["num_attention_heads"]
    turned = file.of_model("rope.dimension_count", head_dim)
    share = turned / head_dim
    # The next larger number where this one's product with head_dim is rounded to below a whole one.
    share = share if int(head_dim * share) == turned else math.nextafter(share, 1)
    parallel = file.of_model("use_parallel_residual", True)
    base = file.of_model("rope.freq_base", 10000.0)
    return found | {"rotary_pct": share, "rotary_emb_base": base, "use_parallel_residual": parallel}


def _check_rope(file: File, usual: dict[str, float]) -> None:
    """Raises ConvertError where a setting of the rotary embedding has another value than the one that is computed."""
    found = {key: file.of_model(key, value) for key, value in usual.items()}
    if unlike := [f"{key} = {value}" for key, value in found.items() if value != usual[key]]:
        read = ", ".join(f"{key} = {value}" for key, value in usual.items())
        raise ConvertError(f"{file.path}: {', '.join(unlike)} is not read, only {read}")


def _scaling(file: File, head_dim: int, theta: float) -> dict[str, Any] | None:
    """The rotary stretch. Raises ConvertError where the file has one that megaxf does not know."""
    kind, factor = file.of_model("rope.scaling.type", "none"), file.of_model("rope.scaling.factor", 1.0)
    if FREQUENCIES in file.tensors:
        return _from_table(file.read(FREQUENCIES), head_dim, theta, str(file.path))
    if kind == "none" or factor == 1:
        return None
    if kind == "linear":
        return {"type": "linear", "factor": factor}
    original = file.of_model("rope.scaling.original_context_length")
    if kind != "yarn" or original is None:
        raise ConvertError(
            f"{file.path}: rope.scaling.type = {kind!r} is not read, only linear and yarn with its length"
        )
    usual = 0.1 * math.log(factor) + 1
    more = {"attention_factor": given * usual} if (given := file.of_model("rope.scaling.attn_factor")) else {}
    ramp = {beta: file.of_model(f"rope.scaling.yarn_{beta}") for beta in ("beta_fast", "beta_slow")}
    more |= {beta: value for beta, value in ramp.items() if value is not None}
    return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}


def _from_table(table: torch.Tensor, head_dim: int, theta: float, where: str) -> dict[str, Any]:
    """Llama 3's stretch, where a table of divisors is what comes of it."""
    scaling = Llama3Scaling(type="llama3", factor=round(table.max().item(), 4), **LLAMA3)  # type: ignore[arg-type]
    plain = plain_frequencies(head_dim, theta)
    if not torch.allclose(plain / scaling.apply(plain, head_dim, theta)[0], table, rtol=1e-4):
        raise ConvertError(f"{where}: {FREQUENCIES} is no stretch that megaxf knows; Llama 3's is")
    return scaling.model_dump()


def _dtype(file: File) -> str:
    """The narrowest dtype that loses nothing of the file."""
    kinds = {tensor.tensor_type.name for tensor in file.tensors.values()} - {"F32"}
    if len(kinds) != 1 or not kinds <= FLOATS.keys():
        return "float32"
    dtype = FLOATS[kinds.pop()]
    wide = [name for name, tensor in file.tensors.items() if tensor.tensor_type.name == "F32" and name != FREQUENCIES]
    exact = all(
        torch.equal(casting.rounded(name, values, dtype), values) for name in wide for values in [file.read(name)]
    )
    return dtype if exact else "float32"

"""One GGUF file, for llama.cpp and what is built on it: the Llama family.

The names come from the `gguf` package's own table. Architecture `llama` turns neighbouring dimensions of a head, where
Hugging Face turns the two halves, so rows of its queries and keys are put in another order; `qwen2` and `qwen3` do not.
Matrices are written in the dtype that is asked for, vectors in fp32, as llama.cpp wants them.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from megaxf.convert import casting
from megaxf.convert.casting import DTYPES, to_bytes
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_file
from megaxf.convert.gguf_settings import context_length, describe_model, needs_table, tables
from megaxf.convert.gguf_tokenizer import describe_tokenizer
from megaxf.convert.interface import Form, Trained, Written, choose_dtype, each_used_once
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.models.llama_config import Config
from megaxf.models.weights import Weights

if TYPE_CHECKING:
    from gguf import GGUFWriter

MAGIC = b"GGUF"
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
"""Our dtypes and the names of `gguf.GGMLQuantizationType`."""
FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32, "q8_0": 7}
"""Values of general.file_type."""
BLOCK = 32
"""Neighbouring values that share a scale in q8_0."""


class Tensor(NamedTuple):
    """One tensor of the file."""

    name: str
    """In the file."""
    ours: str
    shape: torch.Size
    dtype: str


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write one file. A piece of a tensor is in memory at a time, and whole queries and keys where they are permuted.

    Raises ConvertError where llama.cpp has no architecture or tokenizer that computes the same, a weight is missing or
    superfluous, or `out` is in the way.
    """
    gguf = _library()
    config, dtype = model.config, choose_dtype(model, form, TYPES)
    if form.max_shard_size is not None:
        raise ConvertError("--max-shard-size has no effect with --to gguf, which is one file; remove it")
    architecture = _architecture(config)
    wanted = parameter_shapes(config)
    check_names(model.weights.shapes, wanted, str(model.path))
    tensors = _tensors(architecture, wanted, config.num_hidden_layers, dtype)
    with (
        new_file(out, overwrite=form.overwrite, magic=MAGIC) as temporary,
        each_used_once(model.weights, form.told) as weights,
    ):
        writer = gguf.GGUFWriter(temporary, architecture)
        try:
            writer.add_name(out.stem)
            writer.add_file_type(FILE_TYPES[dtype])
            if dtype == "q8_0":
                writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            describe_model(writer, config)
            notes = describe_tokenizer(writer, model)
            _write_tensors(writer, tensors, tables(config), weights, _interleaved(architecture, config))
        finally:
            writer.close()
        size = sum(_bytes(tensor) for tensor in tensors)
    return Written(size, dtype, notes + _notes(config, tensors, dtype))


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a tensor is in fp32 after it was written in a dtype: vectors are as they were."""
    stored = _stored(tensor.shape, dtype)
    if stored != "q8_0":
        return casting.rounded(tensor, stored)
    gguf = _library()
    kind = gguf.GGMLQuantizationType.Q8_0
    return torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.float().numpy(), kind), kind))


def reopen(model: Trained, out: Path) -> Trained:
    """`model` with the tensors of the file that it was written to."""
    architecture, config = _architecture(model.config), model.config
    tensors = _tensors(architecture, parameter_shapes(config), config.num_hidden_layers, "float32")
    names = {tensor.ours: tensor.name for tensor in tensors}
    return model._replace(weights=_File(out, names, _interleaved(architecture, config)), path=out, format="gguf")


class _File(Weights):
    """The tensors of a file under our names, in fp32."""

    def __init__(self, path: Path, names: dict[str, str], heads: dict[str, int]):
        self._tensors = {tensor.name: tensor for tensor in _library().GGUFReader(path).tensors}
        self._names, self._heads = names, heads
        self.shapes = {
            ours: torch.Size(int(size) for size in reversed(self._tensors[name].shape)) for ours, name in names.items()
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        import numpy as np

        found = self._tensors[self._names[name]]
        values = torch.from_numpy(np.array(_library().dequantize(found.data, found.tensor_type)))
        heads = next((count for end, count in self._heads.items() if name.endswith(end)), None)
        # Turned back by giving each head's pairs as its halves: rows 0, 2, 4 ... and then 1, 3, 5 ...
        return values if heads is None else values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).flatten(0, 2)


def _library() -> Any:
    try:
        import gguf
    except ImportError:
        raise ConvertError('writing GGUF needs the package gguf; run pip install "megaxf[gguf]"') from None
    return gguf


def _architecture(config: Config) -> str:
    """The architecture of llama.cpp that computes what the model does. Raises ConvertError where none does."""
    if config.family != "llama":
        raise ConvertError(f"model.family = {config.family}: GGUF is written of the family llama alone")
    if config.attention_bias and config.qk_norm:
        raise ConvertError("llama.cpp has no architecture with both biases (model.attention_bias) and model.qk_norm")
    if config.qk_norm and needs_table(config):
        raise ConvertError(
            "model.rope_scaling: llama.cpp's qwen3 has no table of frequencies, which this stretch needs"
        )
    # qwen2 has neither heads of another size nor a table of frequencies; llama has both, and biases where they are.
    regular = config.num_attention_heads * config.head_dim == config.hidden_size and not needs_table(config)
    return "qwen3" if config.qk_norm else "qwen2" if config.attention_bias and regular else "llama"


def _interleaved(architecture: str, config: Config) -> dict[str, int]:
    """The heads of those projections whose rows llama.cpp wants in another order, by the end of the name."""
    if architecture != "llama":
        return {}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return {f"{name}.{kind}": count for name, count in heads.items() for kind in ("weight", "bias")}


def _notes(config: Config, tensors: list[Tensor], dtype: str) -> list[str]:
    notes = []
    wider = sum(tensor.dtype == "float16" for tensor in tensors) if dtype == "q8_0" else 0
    if wider:
        notes.append(f"{wider} matrices have rows that are no multiple of {BLOCK} and stand in float16")
    length = context_length(config)
    if length < config.max_position_embeddings:
        notes.append(
            "llama.cpp has no sliding window for this architecture: the file's context is the window, "
            f"{length} tokens, within which it hides nothing"
        )
    return notes


def _tensors(architecture: str, shapes: dict[str, torch.Size], layers: int, dtype: str) -> list[Tensor]:
    """What the file will hold of ours. Raises ConvertError for a name that the architecture has not."""
    import gguf

    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, layers)
    found = {ours: names.get_name(ours, try_suffixes=(".weight", ".bias")) for ours in shapes}
    problems = [f"{ours} has no name in architecture {architecture}" for ours, name in found.items() if name is None]
    if problems:
        raise ConvertError.listing("the model cannot be written as GGUF", problems)
    return [Tensor(str(found[ours]), ours, shape, _stored(shape, dtype)) for ours, shape in shapes.items()]


def _stored(shape: torch.Size, dtype: str) -> str:
    """The dtype of one tensor where the file's is `dtype`, as llama.cpp's own converter has it."""
    if len(shape) == 1:
        return "float32"
    return "float16" if dtype == "q8_0" and shape[-1] % BLOCK else dtype


def _bytes(tensor: Tensor) -> int:
    count = tensor.shape.numel()
    return count // BLOCK * (BLOCK + 2) if tensor.dtype == "q8_0" else count * DTYPES[tensor.dtype].itemsize


def _write_tensors(
    writer: GGUFWriter, tensors: list[Tensor], tables: dict[str, torch.Tensor], weights: Weights, heads: dict[str, int]
) -> None:
    """All contents of the file: header, settings, names, and the tensors one after another.

    tables: small fp32 tensors beside the model's. heads: by the end of a name, the heads whose halves are interleaved.
    """
    import gguf
    import numpy as np

    for name, table in tables.items():
        writer.add_tensor_info(name, table.shape, np.dtype(np.float32), table.nbytes)
    for tensor in tensors:
        raw = gguf.GGMLQuantizationType[TYPES[tensor.dtype]]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), _bytes(tensor), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for name, table in tables.items():
        file.write(to_bytes(name, table, "float32"))
        writer.write_padding(file, table.nbytes)
    for tensor in tensors:
        for piece in _pieces(weights, tensor.ours, heads):
            file.write(_encode(tensor, piece))
        writer.write_padding(file, _bytes(tensor))


def _pieces(weights: Weights, name: str, heads: dict[str, int]) -> Iterator[torch.Tensor]:
    count = next((count for end, count in heads.items() if name.endswith(end)), None)
    if count is None:
        yield from weights.pieces(name)
    else:
        yield interleave(weights[name], count)


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads x head_dim, ...] with dimensions 0, d/2, 1, d/2 + 1 ... of each head, where 0, 1, 2 ... were."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _encode(tensor: Tensor, piece: torch.Tensor) -> memoryview:
    if tensor.dtype != "q8_0":
        return to_bytes(tensor.ours, piece, tensor.dtype)
    import gguf

    return gguf.quantize(piece.float().numpy(), gguf.GGMLQuantizationType.Q8_0).data

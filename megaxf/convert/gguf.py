"""One GGUF file, for llama.cpp and what is built on it.

The names come from the `gguf` package's own table, what else differs from `gguf_layouts`. Matrices are written in the
dtype that is asked for, vectors and learned positions in fp32, as llama.cpp wants them.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from megaxf.convert import casting, gguf_reading
from megaxf.convert.casting import DTYPES, to_bytes
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_file
from megaxf.convert.gguf_layouts import Layout, Swapped, layout_of, library, names_in_file
from megaxf.convert.gguf_reading import MAGIC, File, weights_of
from megaxf.convert.gguf_settings import context_length, describe_model, tables
from megaxf.convert.gguf_tokenizer import describe_tokenizer
from megaxf.convert.interface import Form, Trained, Written, choose_dtype, each_used_once
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.convert.tables import Made, shapes_of, to_theirs
from megaxf.models.registry import ModelConfig
from megaxf.models.weights import Weights

if TYPE_CHECKING:
    from gguf import GGUFWriter

recognises, read = gguf_reading.recognises, gguf_reading.read
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
"""Our dtypes and the names of `gguf.GGMLQuantizationType`."""
FILE_TYPES = {"float32": 0, "float16": 1, "bfloat16": 32, "q8_0": 7}
"""Values of general.file_type."""
BLOCK = 32
"""Neighbouring values that share a scale in q8_0."""
POSITIONS = "transformer.wpe.weight"
"""Learned positions."""


class Tensor(NamedTuple):
    """One tensor of the file."""

    name: str
    """In the file."""
    source: str
    """As Hugging Face's."""
    shape: torch.Size
    dtype: str


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write one file. A piece of a tensor is in memory at a time, and whole ones where rows have another order.

    Raises ConvertError where llama.cpp has no architecture or tokenizer that computes the same, a weight is missing or
    superfluous, or `out` is in the way.
    """
    gguf = library()
    config, dtype = model.config, choose_dtype(model, form, TYPES)
    if form.max_shard_size is not None:
        raise ConvertError("--max-shard-size has no effect with --to gguf, which is one file; remove it")
    layout, wanted = layout_of(config), parameter_shapes(config)
    check_names(model.weights.shapes, wanted, str(model.path))
    tensors = _tensors(layout, wanted, config.num_hidden_layers, dtype)
    size = sum(_bytes(tensor) for tensor in tensors)
    with (
        new_file(out, form, magic=MAGIC, needed=size) as temporary,
        each_used_once(model.weights, form.told) as weights,
    ):
        writer = gguf.GGUFWriter(temporary, layout.architecture)
        try:
            writer.add_name(out.stem)
            writer.add_file_type(FILE_TYPES[dtype])
            if dtype == "q8_0":
                writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            describe_model(writer, config)
            notes = describe_tokenizer(writer, model)
            theirs = Swapped(Made(weights, to_theirs(wanted, layout.rules)), layout.swaps)
            _write_tensors(writer, tensors, tables(config), theirs)
        finally:
            writer.close()
    return Written(size, dtype, notes + _notes(config, tensors, dtype))


def rounded(name: str, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a tensor is in fp32 after it was written in a dtype: vectors are as they were."""
    stored = _stored(name, tensor.shape, dtype)
    if stored != "q8_0":
        return casting.rounded(name, tensor, stored)
    gguf = library()
    kind = gguf.GGMLQuantizationType.Q8_0
    return torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.float().numpy(), kind), kind))


def reopen(model: Trained, out: Path) -> Trained:
    """`model` with the tensors of the file that it was written to."""
    weights = weights_of(File(out), model.config, layout_of(model.config))
    return model._replace(weights=weights, path=out, format="gguf")


def _notes(config: ModelConfig, tensors: list[Tensor], dtype: str) -> list[str]:
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
    if getattr(config, "hidden_act", None) == "gelu":
        notes.append("llama.cpp has the GELU by its tanh approximation alone: logits differ by some thousandths")
    return notes


def _tensors(layout: Layout, wanted: dict[str, torch.Size], layers: int, dtype: str) -> list[Tensor]:
    """What the file will hold of our tensors. Raises ConvertError for a name that the architecture has not."""
    names, shapes = names_in_file(layout, wanted, layers), shapes_of(to_theirs(wanted, layout.rules), wanted)
    return [Tensor(names[source], source, shape, _stored(source, shape, dtype)) for source, shape in shapes.items()]


def _stored(source: str, shape: torch.Size, dtype: str) -> str:
    """The dtype of one tensor where the file's is `dtype`, as llama.cpp's own converter has it."""
    if len(shape) == 1 or source == POSITIONS:
        return "float32"
    return "float16" if dtype == "q8_0" and shape[-1] % BLOCK else dtype


def _bytes(tensor: Tensor) -> int:
    count = tensor.shape.numel()
    return count // BLOCK * (BLOCK + 2) if tensor.dtype == "q8_0" else count * DTYPES[tensor.dtype].itemsize


def _write_tensors(writer: GGUFWriter, tensors: list[Tensor], tables: dict[str, torch.Tensor], theirs: Weights) -> None:
    """All contents of the file: header, settings, names, and the tensors one after another.

    tables: small fp32 tensors beside the model's. theirs: the tensors as they are in the file, by their sources.
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
        for piece in theirs.pieces(tensor.source):
            file.write(_encode(tensor, piece))
        writer.write_padding(file, _bytes(tensor))


def _encode(tensor: Tensor, piece: torch.Tensor) -> memoryview:
    if tensor.dtype != "q8_0":
        return to_bytes(tensor.source, piece, tensor.dtype)
    import gguf

    return gguf.quantize(piece.float().numpy(), gguf.GGMLQuantizationType.Q8_0).data

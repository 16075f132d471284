"""Published measurements as questions to the planner: which rows can be asked, with what hardware and software.

The table has one row a measurement: shape, batch, layout, GPU, and tokens/s, TFLOP/s or MFU of a GPU, with the source
and remarks. A row is left out, with a reason, where something that the planner needs is not stated or not offered.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from megaxf.plan.conventions import full_per_token
from megaxf.plan.parameters import Shape, Structure
from megaxf.plan.throughput.constants import SOFTWARE, Software, is_calibration
from megaxf.plan.throughput.hardware import Hardware, find
from megaxf.plan.throughput.layout import Layout

GPUS = {
    "A100-40GB": "a100-40gb",
    "A100-40GB (DGX-A100)": "a100-40gb",
    "A100-80GB": "a100",
    "H100-80GB": "h100",
    "H100-80GB (DGX-H100)": "h100",
    "H100-96GB-HBM2e-500W": "h100",
    "H200": "h200",
}
SYSTEMS = {
    "Narayanan": "megatron-2021",
    "NVIDIA/Megatron-LM README at 2020-09": "megatron-2021",
    "Korthikanti": "megatron-2021",
    "NVIDIA/dgxc-benchmarking": "nemo",
    "pytorch/torchtitan": "torchtitan",
    "mosaicml/llm-foundry": "llm-foundry",
    "huggingface/nanotron": "nanotron",
    "bigscience": "megatron-deepspeed",
    "BLOOM": "megatron-deepspeed",
}
"""Beginning of a source -> software of megaxf.plan.throughput.constants."""
PUBLIC = {"Llama-3.1-405B": {"heads": "128", "kv_heads": "8"}, "GPT-3-175B": {"heads": "96", "kv_heads": "96"}}
"""What rows leave out and papers say (arXiv 2407.21783, 2005.14165), by the beginning of a model's name."""
NEEDED = (
    "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "seq_len", "vocab", "global_batch_seqs", "micro_batch",
    "num_gpus", "tp", "pp", "dp", "cp",
)  # fmt: skip
JEAN_ZAY = 6.25e9
"""Bytes/s of a GPU between nodes there: four Omni-Path ports of 100 Gb/s for eight A100 (arXiv 2211.05100)."""
TITAN_MEMORY = 2.4e12
"""Of the H100 with HBM2e in TorchTitan's reports, bytes/s."""


class Plain(NamedTuple):
    """The numbers of a published architecture, as the planner takes a model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    @property
    def structure(self) -> Structure:
        """All are taken for members of the Llama family."""
        return Structure()


@dataclass(frozen=True)
class Row:
    """One measurement that the planner can be asked about."""

    number: int
    model: str
    gpu: str
    system: str
    layout: Layout
    hardware: Hardware
    software: Software
    published: float
    """Tokens/s of a GPU."""
    calibration: bool
    """Whether constants may be fitted on it; else it is scored."""

    @property
    def words(self) -> str:
        """What it is, in a line."""
        cut = self.layout
        return (
            f"{self.model}, {cut.world_size} {self.gpu}, tp {cut.tensor_parallel_size} pp {cut.pipeline_parallel_size} "
            f"cp {cut.context_parallel_size} zero {cut.zero_stage}, {cut.micro_batch_size} x {cut.sequence_length}, "
            f"recompute {cut.recompute}"
        )


def read(path: Path) -> tuple[list[Row], dict[str, int]]:
    """(the rows that can be asked, how many are left out by reason)."""
    text = path.read_text(encoding="utf-8").splitlines()
    rows, left_out = [], dict[str, int]()
    for number, (line, fields) in enumerate(zip(text[1:], csv.DictReader(text), strict=True), start=2):
        fields = _filled(fields)
        if reason := next(_reasons(fields), None):
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            rows.append(_row(number, line, fields))
    return rows, left_out


def _filled(fields: dict[str, str]) -> dict[str, str]:
    for name, more in PUBLIC.items():
        if fields["model"].startswith(name):
            return fields | {key: fields[key] or value for key, value in more.items()}
    return fields


def _reasons(fields: dict[str, str]) -> Iterator[str]:
    """Why a row cannot be asked."""
    if re.search("fp8|fp4", fields["precision"]):
        yield "8- or 4-bit matrix products: the trainer has none"
    if re.search(r"MoE|hybrid|EP=", fields["notes"]):
        yield "mixture of experts or hybrid: the planner's models are dense"
    if "TPU" in fields["gpu"]:
        yield "TPU: no GPU of the hardware table"
    if "V100" in fields["gpu"]:
        yield "V100: has no bf16 products, and no entry of the hardware table"
    missing = [name for name in NEEDED if not fields[name]]
    if missing:
        yield f"not stated: {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
    if not any(fields["source"].startswith(start) for start in SYSTEMS):
        yield "software without a description"
    if not any(fields[name] for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")):
        yield "no measurement"


def _row(number: int, line: str, fields: dict[str, str]) -> Row:
    system = next(system for start, system in SYSTEMS.items() if fields["source"].startswith(start))
    if system == "megatron-2021" and fields["zero_stage"] == "3":
        system = "zero3-2021"  # DeepSpeed, which that paper compares itself with.
    hardware = find(GPUS[fields["gpu"]])
    if system == "megatron-deepspeed":
        hardware = replace(hardware, network_bandwidth=JEAN_ZAY)
    if "HBM2e" in fields["gpu"]:
        hardware = replace(hardware, memory_bandwidth=TITAN_MEMORY)
    layout = _layout(fields, system)
    published = _tokens(fields, layout.shape, layout.sequence_length, hardware.peak("bf16"))
    software = _software(fields, SOFTWARE[system])
    gpu = fields["gpu"].split(" ")[0]
    return Row(number, fields["model"], gpu, system, layout, hardware, software, published, is_calibration(line))


def _layout(fields: dict[str, str], system: str) -> Layout:
    number = {name: int(fields[name]) for name in NEEDED}
    stages, layers = number["pp"], number["layers"]
    virtual = int(fields["vpp"] or 1)
    flash = system not in ("megatron-2021", "zero3-2021", "megatron-deepspeed")
    modes = {"": "none", "none": "none", "full": "whole layer", "selective": "attention"}
    return Layout(
        shape=_shape(number, "tied embeddings=True" in fields["notes"] or not flash or system == "llm-foundry"),
        sequence_length=number["seq_len"],
        world_size=number["num_gpus"],
        global_batch_size=number["global_batch_seqs"],
        micro_batch_size=number["micro_batch"],
        tensor_parallel_size=number["tp"],
        sequence_parallel=number["tp"] > 1 and (flash or fields["recompute"] == "selective"),
        context_parallel_size=number["cp"],
        pipeline_parallel_size=stages,
        pipeline_schedule="interleaved" if virtual > 1 else "1f1b",
        virtual_stages=virtual,
        stage_layers=(layers // stages, layers // stages) if layers % stages == 0 else None,
        zero_stage=int(fields["zero_stage"] or (1 if flash else 0)),
        recompute=modes.get(fields["recompute"], "every second product"),
        attention_backend="sdpa" if flash else "reference",
        compile="eager" not in fields["notes"],
    )


def _shape(number: dict[str, int], tied: bool) -> Plain:
    """An MLP of two matrices (ffn = 4 hidden) counts as a gated one of two thirds of the width: as many products."""
    gated = number["ffn_hidden"] != 4 * number["hidden"] or number["heads"] != number["kv_heads"]
    width = number["ffn_hidden"] if gated else number["ffn_hidden"] * 2 // 3
    heads, kv_heads = number["heads"], number["kv_heads"]
    head_dim = number["hidden"] // heads
    return Plain(number["vocab"], number["hidden"], width, number["layers"], heads, kv_heads, head_dim, tied)


def _software(fields: dict[str, str], software: Software) -> Software:
    """As a row's remarks vary it."""
    if "async TP" in fields["notes"] or "AsyncTP" in fields["notes"]:
        software = software._replace(hides_tensor=1.0)
    if "MP mode PURE" in fields["notes"] or fields["precision"] == "fp16":
        software = software._replace(gradient_bytes=2)
    return software


def _tokens(fields: dict[str, str], shape: Shape, sequence_length: int, peak: float) -> float:
    """Tokens/s of a GPU: as published, or from TFLOP/s or MFU, which all count the whole square of the scores; some
    count the recomputed forward pass as well, 4/3 in all."""
    if fields["tokens_per_s_per_gpu"]:
        return float(fields["tokens_per_s_per_gpu"])
    tflops = fields["tflops_per_gpu"]
    flops = float(tflops) * 1e12 if tflops else float(fields["mfu_pct"]) / 100 * peak
    counted = 4 / 3 if "HARDWARE" in fields["notes"] or "hardware TFLOPs" in fields["notes"] else 1
    return flops / (full_per_token(shape, sequence_length) * counted)

"""What a layout needs of the model, the batch and the engine: checks as those of megaxf.config_checks.

Those that take "world_size", the number of ranks, run where that is known. The page docs/pretrain.md lists the
sentences, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd, isqrt, lcm, prod
from typing import Any

SOUGHT = 1 << 20
"""How far divisors are sought, for advice: no batch and no cluster is larger than its square."""


def _order_names_each_axis(parallel: Any) -> Iterator[str]:
    axes = [*parallel.degrees(), "data"]
    if sorted(parallel.order) != sorted(axes):
        yield (
            f"parallel.order = [{', '.join(parallel.order)}] does not name each axis once; use pipeline, data, context "
            "and tensor in some order"
        )


def _matrices_are_cut_evenly(parallel: Any, model: Any) -> Iterator[str]:
    degree = parallel.tensor_parallel_size
    for name in ("num_attention_heads", "intermediate_size"):
        if getattr(model, name) % degree:
            yield (
                f"parallel.tensor_parallel_size = {degree} does not divide model.{name} = {getattr(model, name)}; "
                f"{_tensor_advice(model)}"
            )
    kv_heads = model.num_key_value_heads
    if kv_heads % degree and degree % kv_heads:
        yield (
            f"parallel.tensor_parallel_size = {degree} neither divides model.num_key_value_heads = {kv_heads}, so that "
            f"each rank has some, nor is a multiple of it, so that each has a copy of one; {_tensor_advice(model)}"
        )


def _sequence_parallelism_has_ranks(parallel: Any) -> Iterator[str]:
    if parallel.sequence_parallel and parallel.tensor_parallel_size == 1:
        yield (
            "parallel.sequence_parallel = true has no effect with parallel.tensor_parallel_size = 1, whose ranks would "
            "share the sequence; remove it, or use parallel.tensor_parallel_size = 2 or more"
        )


def _sequences_are_cut_evenly(parallel: Any, data: Any) -> Iterator[str]:
    context, length = parallel.context_parallel_size, data.sequence_length
    between = parallel.tensor_parallel_size if parallel.sequence_parallel else 1
    balanced = 2 * context if context > 1 else 1
    unit = lcm(balanced, context * between)
    if length % balanced:
        yield (
            f"data.sequence_length = {length} is not a multiple of 2 x parallel.context_parallel_size = 2 x {context}, "
            "since each rank takes a piece from both ends, which balances causal attention; "
            f"use data.sequence_length = {nearest_multiples(length, unit)}"
        )
    if length % (context * between):
        yield (
            f"data.sequence_length = {length} is not a multiple of parallel.context_parallel_size x "
            f"parallel.tensor_parallel_size = {context} x {between}, over which parallel.sequence_parallel cuts it; "
            f"use data.sequence_length = {nearest_multiples(length, unit)}"
        )


def _ranks_have_words(parallel: Any, model: Any) -> Iterator[str]:
    tensor, words = parallel.tensor_parallel_size, model.vocab_size
    share = -(-words // tensor)
    if share * (tensor - 1) >= words:
        yield (
            f"parallel.tensor_parallel_size = {tensor} leaves ranks without a part of the vocabulary, "
            f"model.vocab_size = {words} in parts of {share}; use at most {-(-words // share)}, or a larger vocabulary"
        )


def _stages_have_layers(parallel: Any, model: Any) -> Iterator[str]:
    parts, layers = parallel.pipeline_parts(), model.num_hidden_layers
    if parallel.pipeline_parallel_size > 1 and parts > layers:
        each = parts // parallel.pipeline_parallel_size
        most = max(layers // each, 1)
        yield (
            f"parallel.pipeline_parallel_size = {parallel.pipeline_parallel_size} needs {parts} decoder layers, "
            f"{each} a stage with parallel.pipeline_schedule = {parallel.pipeline_schedule}, but "
            f"model.num_hidden_layers = {layers}; use at most parallel.pipeline_parallel_size = {most}"
        )


def _layers_are_on_stages(parallel: Any, model: Any) -> Iterator[str]:
    given, parts = parallel.pipeline_layers, parallel.pipeline_parts()
    if given is None or parallel.pipeline_parallel_size == 1:
        return
    if len(given) != parts:
        yield (
            f"parallel.pipeline_layers = {given} has {len(given)} entries, but parallel.pipeline_parallel_size = "
            f"{parallel.pipeline_parallel_size} with parallel.pipeline_schedule = {parallel.pipeline_schedule} has "
            f"{parts} parts; use {parts} entries, in the order of the layers"
        )
    if sum(given) != model.num_hidden_layers:
        yield (
            f"parallel.pipeline_layers = {given} is {sum(given)} layers, but model.num_hidden_layers = "
            f"{model.num_hidden_layers}; use entries with that sum"
        )


def _pipeline_settings_have_stages(parallel: Any) -> Iterator[str]:
    if parallel.pipeline_parallel_size == 1:
        for name, idle in (("pipeline_schedule", "1f1b"), ("pipeline_layers", None)):
            value = getattr(parallel, name)
            if value != idle:
                yield (
                    f"parallel.{name} = {value} has no effect with parallel.pipeline_parallel_size = 1; remove it, or "
                    "use more stages"
                )


def _pipeline_fits_the_engine(parallel: Any, engine: Any, train: Any) -> Iterator[str]:
    if parallel.pipeline_parallel_size == 1:
        return
    stages = f"parallel.pipeline_parallel_size = {parallel.pipeline_parallel_size}"
    if engine.zero_stage == 0:
        yield (
            f"engine.zero_stage = 0 cannot be used with {stages}: the plain-torch engine has no pipeline; use "
            "engine.zero_stage = 1"
        )
    if engine.zero_stage > 1:
        yield (
            f"engine.zero_stage = {engine.zero_stage} cannot be used with {stages}: gradients that are cut over ranks "
            "after each micro-batch cannot be summed over the micro-batches of a pipeline, and DeepSpeed refuses it; "
            "use engine.zero_stage = 1"
        )
    for name in ("offload_optimizer", "offload_parameters"):
        if getattr(engine, name) != "none":
            yield (
                f"engine.{name} = {getattr(engine, name)} cannot be used with {stages}: offloading is not tested with "
                f"DeepSpeed's pipeline; use engine.{name} = none, or parallel.pipeline_parallel_size = 1"
            )
    if train.precision == "fp16":
        yield (
            f"train.precision = fp16 cannot be used with {stages}: loss scaling is not tested with DeepSpeed's "
            "pipeline; use train.precision = bf16"
        )


def _offloading_has_a_stage(engine: Any) -> Iterator[str]:
    needed = {"offload_optimizer": 3 if engine.offload_optimizer == "nvme" else 1, "offload_parameters": 3}
    for name, stage in needed.items():
        if getattr(engine, name) != "none" and engine.zero_stage < stage:
            yield (
                f"engine.{name} = {getattr(engine, name)} needs engine.zero_stage = {stage}, but it is "
                f"{engine.zero_stage}: DeepSpeed offloads only what that stage cuts; use engine.zero_stage = {stage}, "
                f"or engine.{name} = none"
            )


def _nvme_has_a_folder(engine: Any) -> Iterator[str]:
    users = [name for name in ("offload_optimizer", "offload_parameters") if getattr(engine, name) == "nvme"]
    if users and engine.nvme_folder is None:
        yield (
            f"engine.{users[0]} = nvme needs engine.nvme_folder, where it is written; use a folder on a fast local disk"
        )
    if engine.nvme_folder is not None and not users:
        yield (
            f"engine.nvme_folder = {engine.nvme_folder} has no effect while nothing is offloaded to nvme; remove it, "
            "or use engine.offload_optimizer = nvme"
        )


def _loss_scaling_has_an_engine(engine: Any, train: Any) -> Iterator[str]:
    if train.precision == "fp16" and engine.zero_stage == 0:
        yield (
            "train.precision = fp16 needs engine.zero_stage = 1 or more, since the loss scaling is DeepSpeed's; use "
            "engine.zero_stage = 1, or train.precision = bf16"
        )


def _recomputation_has_layers(train: Any, model: Any) -> Iterator[str]:
    every, layers = train.recompute_every, model.num_hidden_layers
    if every > 1 and train.recompute == "none":
        yield (
            f"train.recompute_every = {every} has no effect with train.recompute = none; remove it, or use "
            "train.recompute = full"
        )
    if every > layers:
        yield (
            f"train.recompute_every = {every} is beyond model.num_hidden_layers = {layers}: the first layer alone "
            f"would be recomputed; use at most train.recompute_every = {layers}"
        )


def _world_has_ranks(world_size: int) -> Iterator[str]:
    if world_size < 1:
        yield f"world size {world_size} is not a number of processes; use 1 or more"


def _degrees_fit_the_world(parallel: Any, world_size: int) -> Iterator[str]:
    degrees = parallel.degrees()
    product = prod(degrees.values())
    if world_size > 0 and world_size % product:
        names = " x ".join(f"parallel.{name}_parallel_size" for name, size in degrees.items() if size > 1)
        sizes = " x ".join(str(size) for size in degrees.values() if size > 1)
        yield (
            f"{names} = {sizes} does not divide the number of processes, {world_size}; use {product} processes or a "
            f"multiple, or degrees whose product is one of {divisors(world_size)}"
        )


def _batch_fits_the_ranks(parallel: Any, train: Any, world_size: int) -> Iterator[str]:
    ranks = parallel.data_parallel_size(world_size)
    batch, share = train.global_batch_size, train.micro_batch_size * ranks
    if share > 0 and batch % share and batch % train.micro_batch_size == 0:
        yield (
            f"train.global_batch_size = {batch} is not a multiple of train.micro_batch_size x data-parallel ranks = "
            f"{train.micro_batch_size} x {ranks}; use train.global_batch_size = {nearest_multiples(batch, share)}, or "
            "another number of processes"
        )


def _pipeline_is_filled(parallel: Any, train: Any, world_size: int) -> Iterator[str]:
    ranks, stages = parallel.data_parallel_size(world_size), parallel.pipeline_parallel_size
    schedule = parallel.pipeline_schedule
    if stages == 1 or schedule == "1f1b" or ranks <= 0:
        return
    row, batch = train.micro_batch_size * ranks, train.global_batch_size
    count = batch // row
    of_ranks = f"{count} micro-batches for each of {ranks} data-parallel ranks"
    if schedule == "dualpipev" and count < 2 * stages:
        yield (
            f"train.global_batch_size = {batch} is {of_ranks}, but parallel.pipeline_schedule = dualpipev needs 2 x "
            f"parallel.pipeline_parallel_size = {2 * stages}; use train.global_batch_size = {2 * stages * row} or "
            "more, or parallel.pipeline_schedule = 1f1b"
        )
    if schedule == "interleaved" and count % stages:
        yield (
            f"train.global_batch_size = {batch} is {of_ranks}, but parallel.pipeline_schedule = interleaved needs a "
            f"multiple of parallel.pipeline_parallel_size = {stages}; use train.global_batch_size = "
            f"{nearest_multiples(batch, stages * row)}, or parallel.pipeline_schedule = 1f1b"
        )


LAYOUT_CHECKS: dict[Callable[..., Iterator[str]], tuple[str, ...]] = {
    _order_names_each_axis: ("parallel",),
    _matrices_are_cut_evenly: ("parallel", "model"),
    _sequence_parallelism_has_ranks: ("parallel",),
    _sequences_are_cut_evenly: ("parallel", "data"),
    _ranks_have_words: ("parallel", "model"),
    _stages_have_layers: ("parallel", "model"),
    _layers_are_on_stages: ("parallel", "model"),
    _pipeline_settings_have_stages: ("parallel",),
    _pipeline_fits_the_engine: ("parallel", "engine", "train"),
    _offloading_has_a_stage: ("engine",),
    _nvme_has_a_folder: ("engine",),
    _loss_scaling_has_an_engine: ("engine", "train"),
    _recomputation_has_layers: ("train", "model"),
    _world_has_ranks: ("world_size",),
    _degrees_fit_the_world: ("parallel", "world_size"),
    _batch_fits_the_ranks: ("parallel", "train", "world_size"),
    _pipeline_is_filled: ("parallel", "train", "world_size"),
}
"""Each check with the sections that it takes."""


def _tensor_advice(model: Any) -> str:
    """The degrees that cut this model's matrices evenly."""
    heads, kv_heads, width = model.num_attention_heads, model.num_key_value_heads, model.intermediate_size
    both = _divisors(gcd(heads, width))
    return f"use one of {', '.join(str(d) for d in both if kv_heads % d == 0 or d % kv_heads == 0)}"


def divisors(number: int) -> str:
    """The divisors of a number from 1 on, the large ones of many left out: "1, 2, 4"."""
    found = _divisors(number)
    return ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 or number >= SOUGHT**2 else "")


def _divisors(number: int) -> list[int]:
    """From 1 on; of a number whose root is beyond `SOUGHT` only those up to there."""
    small = [d for d in range(1, min(isqrt(number), SOUGHT) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d < number < SOUGHT**2]


def nearest_multiples(number: int, unit: int) -> str:
    """The positive multiples of `unit` about a number that is none: "40 or 50"."""
    lower = number // unit * unit
    return f"{lower} or {lower + unit}" if lower else str(unit)

"""How a run lies on its ranks, as numbers and as lines of the resolved page; no process group is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megaxf.config import Run
from megaxf.parallel.mesh import axis_sizes
from megaxf.plan.stages import split_layers


def layout(run: Run, world_size: int) -> dict[str, Any]:
    """The layout of a run that fits so many ranks, as plain values; counts are those of one rank."""
    parallel, train, model = run.parallel, run.train, run.model
    sizes = axis_sizes(parallel.degrees(), world_size, parallel.order)
    sequence = run.data.sequence_length // sizes["context"]
    tensor = sizes["tensor"]
    return {
        "sizes": {name: sizes[name] for name in ("pipeline", "data", "context", "tensor")},
        "order": parallel.order,
        "first_groups": {name: first_group(sizes, name) for name in sizes},
        "zero_stage": run.engine.zero_stage,
        "offload_optimizer": run.engine.offload_optimizer,
        "offload_parameters": run.engine.offload_parameters,
        "micro_batch_size": train.micro_batch_size,
        "accumulation": train.global_batch_size // (train.micro_batch_size * sizes["data"]),
        "layers": [[len(part.layers) for part in parts] for parts in split_layers(run)],
        "attention_heads": model.num_attention_heads // tensor,
        "key_value_heads": max(model.num_key_value_heads // tensor, 1),
        "key_value_copies": max(tensor // model.num_key_value_heads, 1),
        "sequence": sequence,
        "sequence_between_matrices": sequence // tensor if parallel.sequence_parallel else sequence,
    }


def first_group(sizes: dict[str, int], name: str) -> list[int]:
    """The ranks along an axis through rank 0; sizes: of all axes, outermost first."""
    stride = 1
    for inner in reversed(sizes):
        if inner == name:
            break
        stride *= sizes[inner]
    return list(range(0, stride * sizes[name], stride))


def layout_lines(found: dict[str, Any], settings: dict[str, Any]) -> dict[str, str]:
    """Label and text of the lines about a layout; what is not cut has none. settings: of the run."""
    sizes, train = found["sizes"], settings["train"]
    lines = {
        "layout": f"data parallel {sizes['data']:,} x accumulation {found['accumulation']:,} x micro-batch "
        f"{found['micro_batch_size']:,}; {_engine(found)}, {train['precision']}, {_recomputation(train)}"
    }
    if max(sizes["pipeline"], sizes["context"], sizes["tensor"]) > 1:
        product = " x ".join(f"{name} {sizes[name]}" for name in found["order"])
        groups = [f"{name} [{_ranks(group)}]" for name, group in found["first_groups"].items() if len(group) > 1]
        lines["mesh"] = f"{product}; with rank 0: {', '.join(groups)}"
    if sizes["tensor"] > 1:
        copies = f" (each on {found['key_value_copies']} ranks)" if found["key_value_copies"] > 1 else ""
        lines["heads"] = f"{found['attention_heads']} query, {found['key_value_heads']} key/value{copies} on a rank"
    if found["sequence_between_matrices"] < settings["data"]["sequence_length"]:
        lines["sequence"] = (
            f"{found['sequence']:,} of {settings['data']['sequence_length']:,} tokens on a rank, "
            f"{found['sequence_between_matrices']:,} between the matrices"
        )
    if sizes["pipeline"] > 1:
        stages = ", ".join(" and ".join(map(str, parts)) for parts in found["layers"])
        lines["pipeline"] = f"{settings['parallel']['pipeline_schedule']}, layers of the stages: {stages}"
    return lines


def _engine(found: dict[str, Any]) -> str:
    moved = {"optimizer": found["offload_optimizer"], "parameters": found["offload_parameters"]}
    offloaded = "".join(f", {what} offloaded to {where}" for what, where in moved.items() if where != "none")
    return f"DeepSpeed ZeRO-{found['zero_stage']}{offloaded}" if found["zero_stage"] else "plain torch"


def _recomputation(train: dict[str, Any]) -> str:
    every = train["recompute_every"]
    return f"recomputation {train['recompute']}" + (f" in one layer of {every}" if every > 1 else "")


def _ranks(ranks: Sequence[int]) -> str:
    """The ranks of a group, which are evenly spaced, in short."""
    if len(ranks) < 3:
        return ", ".join(map(str, ranks))
    step = ranks[1] - ranks[0]
    return f"{ranks[0]} .. {ranks[-1]}" if step == 1 else f"{ranks[0]}, {ranks[1]} .. {ranks[-1]}"

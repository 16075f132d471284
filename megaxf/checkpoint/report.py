"""Says what checkpoints hold: `megaxf inspect`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from data_pipeline.format.report import megabytes
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.finding import Listed
from megaxf.checkpoint.manifest import read_manifest
from megaxf.checkpoint.weights import TOKENIZER, read_config, read_state_file, verify
from megaxf.parallel.mesh import build_mesh


def summary(listed: Listed, contents: bool = False) -> dict[str, Any]:
    """What one checkpoint holds as plain data. contents: compare every file with its checksum first."""
    fault = listed.fault or (_fault(listed.path) if contents else None)
    if fault:
        return {"checkpoint": str(listed.path), "step": listed.step, "fault": fault}
    state, manifest = read_state_file(listed.path), read_manifest(listed.path)
    return {
        "checkpoint": str(listed.path),
        "step": listed.step,
        "fault": None,
        "optimizer_step": state["optimizer_step"],
        "parameters": sum(math.prod(shape) for shape in state["shapes"].values()),
        "tensors": len(state["shapes"]),
        "bytes": sum(entry.size for entry in manifest.values()),
        "tokenizer": any(name.startswith(f"{TOKENIZER}/") for name in manifest),
        "megaxf_version": state["megaxf_version"],
        "extra": state["extra"],
        "model": read_config(listed.path)["model"],
    }


def _fault(path: Place) -> str | None:
    try:
        verify(path, build_mesh())
    except CheckpointError as error:
        return str(error)
    return None


def sentences(found: list[dict[str, Any]]) -> list[str]:
    """Summaries as lines for people, oldest first; the model once, of the newest sound one."""
    lines = [_line(one) for one in found]
    sound = [one for one in found if one["fault"] is None]
    if sound:
        newest = sound[-1]
        model = ", ".join(f"{key} {value}" for key, value in newest["model"].items() if value is not None)
        tokenizer = "with its tokenizer" if newest["tokenizer"] else "without a tokenizer"
        lines.append(f"{newest['parameters']:,} parameters in {newest['tensors']} tensors, {tokenizer}")
        lines.append(f"model: {model}")
    return lines


def _line(one: dict[str, Any]) -> str:
    name = Path(one["checkpoint"]).name
    if one["fault"]:
        return f"{name}  cannot be loaded: {one['fault']}"
    tokens = one["extra"].get("tokens")
    seen = f", {tokens:,} tokens seen" if tokens is not None else ""
    moments = "optimizer state" if one["optimizer_step"] else "weights only"
    size, version = megabytes(one["bytes"]), one["megaxf_version"]
    return f"{name}  step {one['step']:,}{seen}, {moments}, {size}, megaxf {version}"

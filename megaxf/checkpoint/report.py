"""Says what checkpoints hold, without reading a tensor: `megaxf checkpoint list` and `inspect`."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from data_pipeline.format.report import megabytes
from megaxf.checkpoint.errors import DamagedCheckpoint
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.finding import Listed
from megaxf.checkpoint.manifest import read_contents, read_file
from megaxf.checkpoint.tensors import CONTENTS, TensorFiles
from megaxf.checkpoint.weights import CONFIG, TENSORS, read_state_file

FP32 = 4
"""Bytes of a number in a checkpoint."""


def summary(listed: Listed) -> dict[str, Any]:
    """One checkpoint as plain data; of one that cannot be loaded, why."""
    head = {"path": str(listed.path), "step": listed.step}
    try:
        if listed.fault is None:
            return {**head, "fault": None, **_said(listed.path)}
    except DamagedCheckpoint as error:
        return {**head, "fault": str(error)}
    return {**head, "fault": listed.fault}


def _said(path: Place) -> dict[str, Any]:
    """What the small files say. Raises DamagedCheckpoint where one is not what was written."""
    manifest, state = read_contents(path), read_state_file(path)
    loss = state["extra"].get("loss")
    return {
        "tokens": state["extra"].get("tokens"),
        "loss": loss if loss is None or math.isfinite(loss) else None,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "written": manifest.written.isoformat(),
        "optimizer_step": state["optimizer_step"],
        "huggingface": any(name.startswith("huggingface/") for name in manifest.files),
        "megaxf_version": state["megaxf_version"],
    }


def details(path: Place) -> dict[str, Any]:
    """All that a complete checkpoint says of itself, as plain data. Raises DamagedCheckpoint naming a faulty file."""
    manifest, state = read_contents(path), read_state_file(path)
    tensors = TensorFiles(path / TENSORS, read_file(path, f"{TENSORS}/{CONTENTS}"))
    parts: dict[str, list[str]] = {}
    for key in tensors.shapes:
        name, _, part = key.rpartition("/")
        parts.setdefault(name, []).append(part)
    bytes_by_folder: dict[str, int] = {}
    for name, entry in manifest.files.items():
        kind = PurePosixPath(name).parts[0]
        bytes_by_folder[kind] = bytes_by_folder.get(kind, 0) + entry.size
    return {
        "path": str(path),
        "step": state["step"],
        **_said(path),
        "parameters": [
            {"name": name, "shape": shape, "dtype": "float32", "parts": parts.get(name, [])}
            for name, shape in state["shapes"].items()
        ],
        "files": bytes_by_folder,
        "config": yaml.safe_load(read_file(path, CONFIG)) or {},
        "extra": state["extra"],
    }


def table(found: list[dict[str, Any]]) -> Table:
    """A row for each checkpoint, oldest first."""
    page = Table(box=box.SIMPLE_HEAD)
    for name in ("checkpoint", "tokens", "loss", "size", "age", "state"):
        page.add_column(name, justify="right" if name in ("tokens", "loss", "size", "age") else "left", no_wrap=True)
    for one in found:
        name = PurePosixPath(one["path"]).name
        if one["fault"]:
            page.add_row(name, "-", "-", "-", "-", "cannot be loaded", style="red")
            continue
        tokens = "-" if one["tokens"] is None else f"{one['tokens']:,}"
        loss = "-" if one["loss"] is None else f"{one['loss']:.4f}"
        state = "complete" + ", huggingface/" * one["huggingface"] + ", weights only" * (not one["optimizer_step"])
        page.add_row(name, tokens, loss, megabytes(one["bytes"]), _age(one["written"]), state)
    return page


def _age(written: str) -> str:
    """How long ago, in the largest unit of which there are two."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(written)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def show(found: dict[str, Any], console: Console) -> None:
    """`details` for people."""
    total = sum(math.prod(one["shape"]) for one in found["parameters"])
    loss = "" if found["loss"] is None else f", loss {found['loss']:.4f}"
    tokens = "" if found["tokens"] is None else f", {found['tokens']:,} tokens seen"
    lines = [
        f"{found['path']}: step {found['step']:,}{tokens}{loss}, megaxf {found['megaxf_version']}",
        f"{total:,} parameters in {len(found['parameters'])} tensors, {megabytes(found['bytes'])}: "
        + ", ".join(f"{name} {megabytes(size)}" for name, size in found["files"].items()),
    ]
    rows = Table(box=box.SIMPLE_HEAD)
    for name in ("parameter", "shape", "dtype", "size", "with"):
        rows.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for one in found["parameters"]:
        moments = ", ".join(part for part in one["parts"] if part != "master") or "weights only"
        size = megabytes(FP32 * math.prod(one["shape"]) * len(one["parts"]))
        rows.add_row(one["name"], " x ".join(map(str, one["shape"])), one["dtype"], size, moments)
    for part in (*lines, rows):
        console.print(part, highlight=False, soft_wrap=True)
    for title, content in (("config", found["config"]), ("where it goes on", found["extra"])):
        text = yaml.safe_dump(content, sort_keys=False, width=100, default_flow_style=None).rstrip()
        console.print(f"{title}:\n{text}", highlight=False, soft_wrap=True, markup=False)

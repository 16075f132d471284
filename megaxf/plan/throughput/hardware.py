"""GPUs with their node and network, by name: the table configs/hardware.yaml, a file of one's own, or a profile.

find("h100"), find("mine", Path("cluster.yaml")), read_profile(Path("profile.json"))
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from megaxf.plan.errors import PlanError
from megaxf.plan.hardware import peak_flops
from megaxf.plan.output import written
from megaxf.plan.throughput.constants import Constants

PRICED = "May 2026"
"""When the default prices were collected."""
ARCHITECTURES = ("ampere", "hopper", "other")
PRECISIONS = {"bf16": "bf16", "fp16": "bf16", "fp32": "tf32"}
"""Precision of a run -> the peak that its matrix products have on a GPU."""
REQUIRED = ("memory_gb", "memory_tb_s", "node_gpus", "link_gb_s")


@dataclass(frozen=True)
class Hardware:
    """One GPU, or the share of a CPU that a rank has, and how it speaks to others. Bytes, seconds, one way."""

    name: str
    peaks: Mapping[str, float]
    """Precision -> FLOP/s of dense matrix products."""
    memory: float
    memory_bandwidth: float
    node_size: int
    link_bandwidth: float
    """To ranks of the same node."""
    network_bandwidth: float | None
    """Of one rank to other nodes; None where there is no network."""
    dollars_per_hour: float | None = None
    architecture: str = "other"
    measured: Mapping[str, float] = field(default_factory=dict)
    """Constants of megaxf.plan.throughput.constants that were measured on this machine, by name."""

    def peak(self, precision: str) -> float:
        """FLOP/s. Raises PlanError where the device has no such products."""
        if precision not in self.peaks:
            raise PlanError(
                f"{self.name} has no peak for train.precision = {precision}; use one of {', '.join(self.peaks)}, or "
                "give peak_tflops in a file for --hardware"
            )
        return self.peaks[precision]


def table(own: Path | None = None) -> dict[str, Hardware]:
    """All hardware by name; entries of an own file first. Raises PlanError for a file that is none."""
    shipped = Path(str(importlib.resources.files("configs"))) / "hardware.yaml"
    found = _read(own) if own else {}
    return found | {name: entry for name, entry in _read(shipped).items() if name not in found}


def find(name: str, own: Path | None = None) -> Hardware:
    """The hardware of a name; raises PlanError with the near names."""
    known = table(own)
    plain = {_plain(entry): entry for entry in known}
    if _plain(name) in plain:
        return known[plain[_plain(name)]]
    close = [plain[near] for near in get_close_matches(_plain(name), plain, n=3, cutoff=0.5)]
    advice = f"did you mean {' or '.join(close)}?" if close else "describe it in a file for --hardware"
    raise PlanError(f"--gpu {name!r} is not in the hardware table; {advice} (all: {', '.join(known)})")


def read_profile(path: Path) -> Hardware:
    """The machine that `megaxf plan calibrate` measured. Raises PlanError for a file that it did not write."""
    try:
        machine = Hardware(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise PlanError(f"{path} is not a profile that megaxf plan calibrate wrote: {error}") from None
    if wrong := list(_faults(machine)):
        raise PlanError(f"{path} is not a profile that megaxf plan calibrate wrote: {'; '.join(wrong)}")
    return machine


def _faults(machine: Hardware) -> Iterator[str]:
    """What no machine can have."""
    names = ["memory", "memory_bandwidth", "node_size", "link_bandwidth", "network_bandwidth", "dollars_per_hour"]
    numbers = {name: getattr(machine, name) for name in names}
    for name in ("network_bandwidth", "dollars_per_hour"):
        if numbers[name] is None:
            del numbers[name]
    for name in ("peaks", "measured"):
        given = getattr(machine, name)
        if not isinstance(given, dict):
            yield f"{name} = {given!r} is not names with numbers"
            continue
        numbers |= {f"{name}.{key}": value for key, value in given.items()}
        if name == "measured":
            yield from (f"measured.{key} is no constant" for key in given if key not in Constants._fields)
    for name, value in numbers.items():
        if not positive(value, or_zero=name.startswith("measured.")):
            yield f"{name} = {value!r} is not a positive number"
    if machine.architecture not in ARCHITECTURES:
        yield f"architecture = {machine.architecture!r} is none of {', '.join(ARCHITECTURES)}"


def positive(value: Any, or_zero: bool = False) -> bool:
    """Whether it is a finite number above 0 (or 0, where that may be); True and False are none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (0 < value < float("inf") or (or_zero and value == 0))


def write_profile(path: Path, machine: Hardware) -> None:
    """Write what was measured, for `--profile`."""
    values = {entry.name: getattr(machine, entry.name) for entry in fields(machine)}
    with written(path) as part:
        part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _plain(name: str) -> str:
    """A name as people vary it: H100-SXM, a100-80gb, RTX 4090."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum()).removeprefix("nvidia")
    return letters.removesuffix("sxm") if letters.startswith("h") else letters.replace("a10080gb", "a100")


def _read(path: Path) -> dict[str, Hardware]:
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PlanError(f"{path} cannot be read as a hardware table: {' '.join(str(error).split())}") from None
    if not isinstance(entries, dict):
        raise PlanError(f"{path} is not a hardware table; write it as configs/hardware.yaml is")
    return {str(name): _entry(path, str(name), entry) for name, entry in entries.items()}


def _entry(path: Path, name: str, entry: Any) -> Hardware:
    known = {*REQUIRED, "device", "peak_tflops", "architecture", "network_gb_s", "dollars_per_hour"}
    if not isinstance(entry, dict) or not set(REQUIRED) <= set(entry) <= known:
        raise PlanError(f"{path}: {name} needs {', '.join(REQUIRED)} and may have {', '.join(known - set(REQUIRED))}")
    numbers = {key: value for key, value in entry.items() if key in known - {"device", "peak_tflops", "architecture"}}
    for key, value in numbers.items():
        if not positive(value):
            raise PlanError(f"{path}: {name}.{key} = {value!r} is not a positive number")
    if entry["node_gpus"] % 1:
        raise PlanError(f"{path}: {name}.node_gpus = {entry['node_gpus']!r} is not a whole number of GPUs")
    if (kind := entry.get("architecture", "other")) not in ARCHITECTURES:
        raise PlanError(f"{path}: {name}.architecture = {kind!r}; use one of {', '.join(ARCHITECTURES)}")
    network = entry.get("network_gb_s")
    return Hardware(
        name=name,
        peaks=_peaks(path, name, entry),
        memory=entry["memory_gb"] * 1e9,
        memory_bandwidth=entry["memory_tb_s"] * 1e12,
        node_size=int(entry["node_gpus"]),
        link_bandwidth=entry["link_gb_s"] * 1e9,
        network_bandwidth=None if network is None else network * 1e9,
        dollars_per_hour=entry.get("dollars_per_hour"),
        architecture=kind,
    )


def _peaks(path: Path, name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """From `peak_tflops`, or from the peaks of the device by its name."""
    if (given := entry.get("peak_tflops")) is not None:
        if not isinstance(given, dict) or not given or not all(positive(value) for value in given.values()):
            raise PlanError(
                f"{path}: {name}.peak_tflops = {given!r} is not precisions with positive numbers: {{bf16: 989.4}}"
            )
        return {precision: tflops * 1e12 for precision, tflops in given.items()}
    device = entry.get("device", name)
    found = {precision: peak_flops(device, dtype) for precision, dtype in PRECISIONS.items()}
    if not any(found.values()):
        raise PlanError(f"{path}: {name}.device = {device!r} has no known peak; give peak_tflops: {{bf16: ...}}")
    return {precision: flops for precision, flops in found.items() if flops}

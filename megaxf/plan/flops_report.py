"""The FLOPs of a training as numbers and as a page: what is counted, where they go, how long they take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from megaxf.plan.conventions import CONVENTIONS, days, mfu
from megaxf.plan.errors import PlanError
from megaxf.plan.flops import hardware_per_sequence, parts_per_sequence, per_sequence, per_token
from megaxf.plan.laws.page import table
from megaxf.plan.parameters import Shape, check_length, count
from megaxf.plan.quantities import quantity

COUNTS = {
    "total": "stored and trained; a tied table once",
    "non_embedding": "in the layers and the final norm",
    "matmul": "in the matrices that a token is multiplied with: the layers' and the head, tied or not",
}
"""Counts of parameters that are printed, and what each holds."""


class Work(NamedTuple):
    """A training whose FLOPs are asked for."""

    shape: Shape
    sequence_length: int
    recompute: str = "none"
    recompute_every: int = 1
    dropout: bool = False
    fused: bool = True
    """Whether attention is a fused kernel, whose backward pass makes the scores again."""
    batch: int | None = None
    """Sequences of a step."""
    tokens: float | None = None
    """Of the whole training."""


class Machine(NamedTuple):
    """What it would run on."""

    name: str
    peak: float
    """FLOP/s of one GPU."""
    gpus: int = 1
    mfu: float | None = None
    """Share of the peak that model FLOPs are expected to reach."""
    speed: float | None = None
    """Measured tokens/s of one GPU."""


def work_of(run: Any) -> Work:
    """The training of a megaxf.config.Run."""
    train, length = run.train, run.data.sequence_length
    return Work(
        run.model,
        length,
        train.recompute,
        train.recompute_every,
        train.dropout > 0,
        train.attention_backend == "sdpa",
        train.global_batch_size,
        train.steps * train.global_batch_size * length,
    )


def values(work: Work, machine: Machine | None = None) -> dict[str, Any]:
    """All that is known, for JSON. Raises PlanError for what cannot be."""
    _check(work, machine)
    shape, length = work.shape, work.sequence_length
    counted = count(shape)
    model = per_sequence(shape, length)
    hardware = hardware_per_sequence(
        shape, length, work.recompute, work.recompute_every, dropout=work.dropout, fused=work.fused
    )
    return {
        "parameters": {name: getattr(counted, name) for name in COUNTS},
        "sequence_length": length,
        "recompute": work.recompute,
        "recompute_every": work.recompute_every,
        "batch": work.batch,
        "tokens": work.tokens,
        "model": _portions(model, work),
        "hardware": _portions(hardware, work),
        "shares": {name: part / model for name, part in parts_per_sequence(shape, length).items()},
        "conventions": {row.name: row.per_token(shape, length) for row in CONVENTIONS},
        "machine": _machine(work, machine, hardware) if machine else None,
    }


def _check(work: Work, machine: Machine | None) -> None:
    check_length(work.shape, work.sequence_length)
    numbers = {"--sequence-length": work.sequence_length, "--tokens": work.tokens}
    if machine:
        numbers |= {"--gpus": machine.gpus, "--mfu": machine.mfu, "--speed": machine.speed}
    for name, number in numbers.items():
        if number is not None and not 0 < number < float("inf"):
            raise PlanError(f"{name} = {number:g} is not a number above 0")
    if machine and machine.mfu is not None and machine.mfu > 1:
        raise PlanError(f"--mfu = {machine.mfu:g} is more than the whole peak; write 40 % as 0.4")


def _portions(sequence: int, work: Work) -> dict[str, float | None]:
    """FLOPs of a token, a sequence, a step and the training; None where its size is not known."""
    token = sequence / work.sequence_length
    return {
        "token": token,
        "sequence": sequence,
        "step": sequence * work.batch if work.batch else None,
        "run": token * work.tokens if work.tokens else None,
    }


def _machine(work: Work, machine: Machine, hardware: int) -> dict[str, Any]:
    """The time that the training takes, and the utilisation that a measured speed is, by each convention."""
    shape, length = work.shape, work.sequence_length
    each, time, utilisation = per_token(shape, length), None, None
    achieved = machine.speed * each if machine.speed else machine.mfu and machine.mfu * machine.peak
    if achieved and work.tokens:
        whole = days(each * work.tokens, machine.gpus, achieved)
        time = {"days": whole, "gpu_hours": 24 * whole * machine.gpus, "tokens_per_second": achieved / each}
    if machine.speed:
        flops = {row.name: row.per_token(shape, length) for row in CONVENTIONS} | {"hardware": hardware / length}
        utilisation = {name: mfu(flop, machine.speed, 1, machine.peak) for name, flop in flops.items()}
    return machine._asdict() | {"time": time, "utilisation": utilisation}


def page(found: dict[str, Any]) -> str:
    """What `values` found, for people."""
    parts = [_parameters(found), _flops(found), _shares(found), _conventions(found), _time(found["machine"])]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _parameters(found: dict[str, Any]) -> Iterator[str]:
    yield "Parameters"
    rows = [[name, f"{number:,}", COUNTS[name]] for name, number in found["parameters"].items()]
    yield from table(rows, left=(0, 2))


def _flops(found: dict[str, Any]) -> Iterator[str]:
    yield f"Training FLOPs, forward and backward, on sequences of {found['sequence_length']:,} tokens"
    rows = [[label, *map(_flop, found[name].values())] for name, label in _counted(found).items()]
    sizes = ["token", "sequence", "step", "training"]
    shown = [place for place, cell in enumerate(rows[0]) if cell != "-"]
    yield from table([[row[place] for place in shown] for row in rows], [["", *sizes][place] for place in shown])


def _counted(found: dict[str, Any]) -> dict[str, str]:
    every = f" in every {found['recompute_every']}th layer" if found["recompute_every"] > 1 else ""
    return {"model": "model FLOPs", "hardware": f"hardware FLOPs, recomputation {found['recompute']}{every}"}


def _shares(found: dict[str, Any]) -> Iterator[str]:
    yield "Where the model FLOPs go"
    yield from table([[name, f"{share:.2%}"] for name, share in found["shares"].items()])


def _conventions(found: dict[str, Any]) -> Iterator[str]:
    """Each way to count, and the MFU that it makes of a measured speed."""
    model, machine = found["conventions"]["model"], found["machine"]
    shares = (machine or {}).get("utilisation")
    yield "FLOPs of a token as others count them, without recomputation"
    rows = []
    for row in CONVENTIONS:
        flops = found["conventions"][row.name]
        mfu_cell = [f"{shares[row.name]:.2%}"] if shares else []
        rows.append([row.name, _flop(flops), f"{flops / model - 1:+.1%}", *mfu_cell, row.counts])
    mfu_head = ["MFU"] if shares else []
    yield from table(rows, ["", "a token", "to model", *mfu_head, "counts"], left=(0, len(rows[0]) - 1))
    if shares:
        yield f"  HFU, with what is computed again: {shares['hardware']:.2%}"


def _time(machine: dict[str, Any] | None) -> Iterator[str]:
    if not machine:
        return
    yield f"On {machine['gpus']:,} x {machine['name']}, peak {machine['peak'] / 1e12:g} TFLOP/s each"
    if time := machine["time"]:
        how = "at the measured speed" if machine["speed"] else f"at an MFU of {machine['mfu']:.1%}"
        yield f"  {how}: {quantity(time['tokens_per_second'])} tokens/s of each GPU"
        yield f"  {time['days']:.4g} days, {time['gpu_hours']:.6g} GPU-hours for the training"
    elif not machine["utilisation"]:
        yield "  how long? give --mfu, and --tokens where there is no run file"


def _flop(count: float | None) -> str:
    if count is None:
        return "-"
    return f"{count:,.0f}" if count < 1e14 else f"{count:.6g}"

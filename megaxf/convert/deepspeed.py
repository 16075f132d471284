"""DeepSpeed's checkpoints of models of the Llama family under Hugging Face's names.

Read are the folders of ZeRO 1 to 3 and universal ones (arXiv 2406.18820), written are universal ones, which DeepSpeed
loads at any ZeRO stage and number of ranks where its configuration says checkpoint.load_universal:

    latest_universal                                    names the folder below
    global_step100_universal/
        zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt    a parameter's master weights and AdamW's moments
        zero/NAME/step.pt, zero/optimizer_state.pt      what else the optimizer needs
        *mp_rank_00_model_states.pt                     counters
    config.json, tokenizer.json, ...                    as in a Hugging Face folder: DeepSpeed does not keep them

To be read, a folder needs config.json (and should have the tokenizer) beside `latest` or in the step's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megaxf.convert import huggingface
from megaxf.convert.deepspeed_zero import MOMENTS, read_zero
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_folder
from megaxf.convert.interface import Form, OptimizerState, Trained, Written, each_used_once, refuse_options
from megaxf.convert.names import check_names, parameter_shapes
from megaxf.convert.torch_files import read_torch_file, save
from megaxf.models.registry import family
from megaxf.models.weights import Weights

POINTERS = ("latest", "latest_universal")
STATES = "mp_rank_00_model_states.pt"
"""Of ZeRO 1 and 2; of ZeRO 3 the same with `zero_pp_rank_0_` before it."""
GROUPS = 64
"""DeepSpeed pairs its parameter groups with these, and loads as many as there are."""
ENABLED = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}
"""What DeepSpeed computes in by the sections of its configuration that are enabled."""
DS_VERSION = "0.19.8"
"""Whose layout it is."""


def recognises(path: Path) -> bool:
    """Whether a path is a folder of steps, or of one. Weights in safetensors beside it are a Hugging Face folder's."""
    return _step_folder(path) is not None and not any(path.glob("*.safetensors"))


def read(path: Path) -> Trained:
    """The model of a folder; tensors are read when asked for.

    Raises ConvertError for a folder that is incomplete or damaged or does not say its model, and for names and shapes
    that are not those of config.json.
    """
    folder = _step_folder(path)
    if folder is None:
        raise ConvertError(f"{path} names no folder of a step in {' or '.join(POINTERS)}")
    described = next((place for place in (folder, folder.parent) if huggingface.recognises(place)), None)
    if described is None:
        raise ConvertError(
            f"{folder} does not say what model it is, since DeepSpeed does not keep that; copy the model's config.json "
            "and tokenizer into it"
        )
    about = huggingface.read_description(described)
    wanted = parameter_shapes(about.config)
    states = _model_states(folder)
    if (folder / "zero").is_dir():
        weights, optimizer = _read_universal(folder / "zero", wanted)
    else:
        weights, optimizer = read_zero(folder, states["param_shapes"])
    check_names(weights.shapes, wanted, str(folder))
    return Trained(
        about.config, weights, about.tokenizer, _dtype(states), about.eos_ids, folder, "deepspeed", optimizer
    )


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write a universal folder; whole tensors in fp32 are in memory one at a time.

    Moments that the source does not have are zero. Raises ConvertError where the model is not of the Llama family,
    names do not fit the configuration, an option has no effect, or `out` is in the way.
    """
    refuse_options(form, "deepspeed", "each tensor is in fp32, in a file of its own", "dtype", "max_shard_size")
    config = model.config
    if config.family != "llama":
        raise ConvertError(f"model.family = {config.family} is not written for DeepSpeed, only llama")
    wanted = parameter_shapes(config)
    check_names(model.weights.shapes, wanted, str(model.path))
    optimizer = model.optimizer or OptimizerState(0, {})
    size = 12 * sum(shape.numel() for shape in wanted.values())
    with (
        new_folder(out, form, mark=POINTERS[1], needed=size, inner="global_step*") as folder,
        each_used_once(model.weights, form.told) as weights,
    ):
        huggingface.describe(model, folder, model.dtype)
        tag = f"global_step{optimizer.step}_universal"
        for name, kinds in _kinds(config, wanted).items():
            place = folder / tag / "zero" / name
            save({"param": _own(weights[name]), **kinds}, place / "fp32.pt")
            for moment in MOMENTS:
                held = optimizer.moments.get(moment)
                values = torch.zeros(wanted[name]) if held is None else _own(held[name])
                save({"param": values, **kinds}, place / f"{moment}.pt")
            save(torch.tensor(float(optimizer.step)), place / "step.pt")
        _write_states(folder / tag, model, wanted, optimizer.step)
        (folder / POINTERS[1]).write_text(tag, encoding="utf-8")
    return Written(size, "float32", [])


def reopen(model: Trained, out: Path) -> Trained:
    """The folder that `model` was written to."""
    return read(out)


def rounded(name: str, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """What a tensor of the model is in the output."""
    return tensor.float()


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """In fp32 and with no more behind it than its elements, all of which torch.save would write."""
    return tensor.to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def _kinds(config: Any, shapes: Mapping[str, torch.Size]) -> dict[str, dict[str, Any]]:
    """What DeepSpeed wants to know of a parameter to cut it over tensor-parallel ranks."""
    plan = family(config.family).TENSOR_PLAN
    kinds: dict[str, dict[str, Any]] = {"row": {"cat_dim": 1}, "vocab": {"cat_dim": 0, "vocab_tensor": True}}
    ends = {name.rpartition("*.")[2]: kind for name, kind in plan.items()}
    return {
        name: next(
            (kinds[kind] for end, kind in ends.items() if f"{end}.weight" in name and kind in kinds), {"cat_dim": 0}
        )
        for name in shapes
    }


def _write_states(folder: Path, model: Trained, shapes: Mapping[str, torch.Size], step: int) -> None:
    """The counters, in the places where the stages of ZeRO look for them."""
    hyperparameters: list[dict[str, Any]] = [{"params": []} for _ in range(GROUPS)]  # empty: the run's own stay
    state = {"state": {0: {"step": torch.tensor(float(step))}}, "param_groups": hyperparameters}
    save(
        {"ds_version": DS_VERSION, "param_groups": hyperparameters, "optimizer_state_dict": state},
        folder / "zero" / "optimizer_state.pt",
    )
    counters = {
        "module": {},
        "param_shapes": [dict(shapes)],
        "buffer_names": [],
        "shared_params": {},
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": step,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {key: {"enabled": model.dtype == name} for key, name in ENABLED.items()},
        "ds_version": DS_VERSION,
    }
    for prefix in ("", "zero_pp_rank_0_"):
        save(counters, folder / f"{prefix}{STATES}")


def _step_folder(path: Path) -> Path | None:
    """The folder of the step that a path means."""
    for pointer in POINTERS:
        if (path / pointer).is_file():
            folder = path / (path / pointer).read_text(encoding="utf-8").strip()
            return folder if folder.is_dir() else None
    return path if any(path.glob(f"*{STATES}")) else None


def _model_states(folder: Path) -> Any:
    if any(folder.glob("layer_*-model_states.pt")):
        raise ConvertError(f"{folder} was saved by DeepSpeed's pipeline, whose names are not Hugging Face's")
    found = [path for path in (folder / STATES, folder / f"zero_pp_rank_0_{STATES}") if path.is_file()]
    if not found:
        raise ConvertError(f"{folder} has no {STATES} (ZeRO 1, 2) or zero_pp_rank_0_{STATES} (ZeRO 3)")
    return read_torch_file(found[0])


def _dtype(states: Mapping[str, Any]) -> str:
    """What DeepSpeed computed in."""
    config = states.get("ds_config") or {}
    return next((name for key, name in ENABLED.items() if (config.get(key) or {}).get("enabled")), "float32")


class _Universal(Weights):
    """One kind of the tensors of a universal folder, a file each."""

    def __init__(self, folder: Path, kind: str, shapes: dict[str, torch.Size]) -> None:
        self._folder, self._kind, self.shapes = folder, kind, shapes

    def __getitem__(self, name: str) -> torch.Tensor:
        path = self._folder / name / f"{self._kind}.pt"
        content = read_torch_file(path)
        tensor: torch.Tensor = content["param"] if isinstance(content, dict) else content
        if tensor.numel() != self.shapes[name].numel():
            raise ConvertError(f"{path} has {tensor.numel():,} elements, {list(self.shapes[name])} are expected")
        return tensor.view(self.shapes[name])


def _read_universal(folder: Path, wanted: dict[str, torch.Size]) -> tuple[Weights, OptimizerState | None]:
    """What lies in `zero`; tensors of ZeRO 3 are flat there, so config.json says the shapes."""
    names = [path.parent.name for path in sorted(folder.glob("*/fp32.pt"))]
    shapes = {name: wanted.get(name, torch.Size()) for name in [*(n for n in wanted if n in names), *names]}
    places = [f"{name}/{moment}.pt" for name in names for moment in MOMENTS]
    missing = [place for place in places if not (folder / place).is_file()]
    if missing == places:
        return _Universal(folder, "fp32", shapes), None
    if missing:
        problems = [f"{place} is missing" for place in missing]
        raise ConvertError.listing(f"{folder} has AdamW's moments of some parameters only", problems)
    steps = folder / next(iter(names), "") / "step.pt"
    step = int(read_torch_file(steps)) if steps.is_file() else _stage_3_step(folder)
    moments: dict[str, Weights] = {moment: _Universal(folder, moment, shapes) for moment in MOMENTS}
    return _Universal(folder, "fp32", shapes), OptimizerState(step, moments)


def _stage_3_step(folder: Path) -> int:
    return int(read_torch_file(folder / "optimizer_state.pt")["optimizer_state_dict"]["state"][0]["step"])

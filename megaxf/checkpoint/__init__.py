"""Checkpoints without a layout: whole tensors by name, complete or not there at all.

    save(folder, step, engine, extra, mesh, config=text, tokenizer=path, keep_last=2)
    flight = Background(mesh, saving(..., HostBuffers()))       # the same, beside training
    path = find_latest(folder, mesh)
    extra = load(path, engine, mesh)            # or load_latest(folder, engine, mesh), which falls back when damaged
    weights = read_weights(path)                # name -> fp32 tensor, read when asked for

What lies in `step-00000012`:

    tensors/        torch.distributed.checkpoint files: `<parameter>/master`, `/exp_avg`, `/exp_avg_sq`, fp32, in the
                    boxes that ranks held; a rank reads what overlaps its own
    state.json      step, AdamW's step, shapes, and what the training loop gave as `extra`
    config.yaml     the resolved configuration
    tokenizer/      the tokenizer's files
    manifest.json   size and checksum of each file, written last
"""

from megaxf.checkpoint.background import Background, run_flow
from megaxf.checkpoint.checking import verify
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.finding import find_latest, list_checkpoints, resolve
from megaxf.checkpoint.loading import load, load_latest
from megaxf.checkpoint.saving import save, save_weights, saving
from megaxf.checkpoint.staging import HostBuffers
from megaxf.checkpoint.weights import read_config, read_extra, read_moments, read_weights, tokenizer_folder

__all__ = [
    "Background",
    "CheckpointError",
    "DamagedCheckpoint",
    "HostBuffers",
    "find_latest",
    "list_checkpoints",
    "load",
    "load_latest",
    "read_config",
    "read_extra",
    "read_moments",
    "read_weights",
    "resolve",
    "run_flow",
    "save",
    "save_weights",
    "saving",
    "tokenizer_folder",
    "verify",
]

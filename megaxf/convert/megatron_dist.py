"""Megatron-LM's layout `torch_dist`, written: whole tensors, the layers of each kind stacked, which any ranks load.

What a folder holds is said in `megatron_boxes`, which reads it.
"""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from pathlib import Path

from torch.distributed.checkpoint.state_dict_saver import save as save_boxes

from megaxf.convert import casting, megatron
from megaxf.convert.interface import Form, Trained, Written, refuse_options
from megaxf.convert.megatron_boxes import COMMON, KIND
from megaxf.convert.megatron_names import LAYER, parts
from megaxf.convert.torch_files import save

DESCRIPTION = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
rounded, reopen = casting.rounded, megatron.reopen


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write a folder that any number of ranks loads, as `megatron.write` does."""
    refuse_options(form, "megatron_dist", "its files are those of one process", "max_shard_size")
    return megatron.write_release(model, out, form, 1, 1, _put)


def _put(cutter: megatron.Cutter, arguments: Namespace, folder: Path) -> None:
    made, layers = parts(cutter.config), range(cutter.config.num_hidden_layers)
    first = f"{LAYER}0."
    state = {name: cutter.cut(part)[0] for name, part in made.items() if not name.startswith(LAYER)}
    for end in [name.removeprefix(first) for name in made if name.startswith(first)]:
        state[f"{LAYER}{end}"] = cutter.stack([made[f"{LAYER}{layer}.{end}"] for layer in layers])
    save(megatron.contents(arguments), folder / COMMON)
    (folder / KIND).write_text(json.dumps(DESCRIPTION), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save_boxes(state, checkpoint_id=folder, no_dist=True)

"""A model of other programs as a checkpoint: `megaxf convert --to megaxf`.

It is no run, which could be gone on with: a run that is to start from it, or from what it was made of, names it as
`init.from`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from data_pipeline.tokenizer.base import load_tokenizer
from megaxf.checkpoint import save_weights
from megaxf.checkpoint.finding import CHECKPOINTS
from megaxf.convert.errors import ConvertError
from megaxf.convert.folders import new_folder
from megaxf.convert.interface import Form, Trained, Written, each_used_once, refuse_options
from megaxf.convert.names import check_names, parameter_shapes


def write(model: Trained, out: Path, form: Form) -> Written:
    """Write `out/checkpoints/step-00000000`: weights alone; one whole fp32 tensor is in memory at a time.

    Raises ConvertError where names do not fit the configuration, an option has no effect, or `out` is in the way.
    """
    refuse_options(form, "megaxf", "a checkpoint holds fp32 tensors", "dtype", "max_shard_size")
    if (out / "config.yaml").exists():
        raise ConvertError(f"{out} is a run; choose another name, or remove it yourself")
    shapes = parameter_shapes(model.config)
    check_names(model.weights.shapes, shapes, str(model.path))
    config = yaml.safe_dump({"model": model.config.model_dump()}, sort_keys=False)
    size = 4 * sum(shape.numel() for shape in shapes.values())
    # No past: what a run would go on with is missing.
    extra = {"samples": 0, "tokens": 0, "data": None, "dtype": model.dtype, "eos_ids": model.eos_ids}
    with (
        new_folder(out, form, mark=CHECKPOINTS, needed=size, inner=CHECKPOINTS) as folder,
        TemporaryDirectory() as spare,
        each_used_once(model.weights, form.told) as weights,
    ):
        if model.tokenizer:
            load_tokenizer(model.tokenizer).save(spare)
        tokenizer = spare if model.tokenizer else None
        save_weights(folder / CHECKPOINTS, shapes, weights.__getitem__, extra, config=config, tokenizer=tokenizer)
    return Written(size, "float32", [])

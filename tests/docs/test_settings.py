"""The table of settings in docs/pretrain.md names every setting there is, with its default."""

import re
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from megaxf.config import Run
from megaxf.config_data import Phase, Source

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pretrain.md").read_text()


def settings(model, prefix=""):
    """(key, default) of every leaf of a run, the model's own settings left out."""
    for name, field in model.model_fields.items():
        inner = next((a for a in (field.annotation, *get_args(field.annotation)) if _is_section(a)), None)
        if name == "sources":
            yield from settings(Source, "data.sources.NAME.")
        elif name == "phases":
            yield from settings(Phase, "data.phases[N].")
        elif inner and name != "model":
            yield from settings(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", None if field.is_required() else field.default


def _is_section(annotation):
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def documented():
    """key -> the default that the table gives."""
    return dict(re.findall(r"^\| `([\w.[\]]+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))


def test_every_setting_is_documented_with_its_default():
    table, actual = documented(), dict(settings(Run))
    assert set(table) == set(actual)
    for key, default in actual.items():
        if default is None:
            continue
        shown = str(list(default) if isinstance(default, tuple) else default).lower().replace("'", "")
        assert table[key] in (shown, "1e-8"), key

"""What is the same in reading and writing the config.json of any family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from megaxf.config_errors import explain
from megaxf.convert.errors import ConvertError

TokenIds = dict[str, int | list[int] | None]
"""bos_token_id, eos_token_id, pad_token_id; None is written as null, since the classes' defaults are not None."""

NO_MODEL = "config.json does not describe a model of megaxf"
UNSUPPORTED = ("quantization_config", "auto_map")
"""Settings that no family has."""


class Names(NamedTuple):
    """The settings of an architecture."""

    architecture: str
    """The class of transformers."""
    model_type: str
    required: Mapping[str, str]
    """Their name -> ours."""
    optional: Mapping[str, str]
    """The same, of settings whose default is the same on both sides."""
    fixed: Mapping[str, Any]
    """Settings that have one value here, which is transformers' default."""

    def both(self) -> dict[str, str]:
        """Those that are settings here too."""
        return {**self.required, **self.optional}


def write_settings(names: Names, config: Any, ids: TokenIds, dtype: str) -> dict[str, Any]:
    """The content of config.json. dtype: of the weights in the files, as torch names it."""
    own = {theirs: getattr(config, ours) for theirs, ours in names.both().items()}
    kind = {"architectures": [names.architecture], "model_type": names.model_type}
    return kind | own | {**names.fixed} | {"use_cache": True, "dtype": dtype, "torch_dtype": dtype} | ids


def read_settings(names: Names, settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of our Config. Raises ConvertError with every setting that is missing or has a value that we have not."""
    given = {name: value for name, value in settings.items() if value is not None}
    problems = [f"{name} is missing" for name in names.required if name not in given]
    problems += [
        f"{name} = {given[name]!r} is not supported, only {value!r}"
        for name, value in names.fixed.items()
        if given.get(name, value) != value
    ]
    problems += [f"{name} is not supported" for name in UNSUPPORTED if name in given]
    if problems:
        raise ConvertError.listing(NO_MODEL, problems)
    return {ours: given[theirs] for theirs, ours in names.both().items() if theirs in given}


def make_config(kind: type[BaseModel], fields: dict[str, Any], names: Names | None = None) -> Any:
    """A family's Config. Raises ConvertError with all that is wrong with the fields, under their names."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        theirs = {ours: name for name, ours in names.both().items()} if names else {}
        problems = [text.partition(" ") for text in explain(error.errors(), kind, fields)]
        said = [theirs.get(first, first) + space + rest for first, space, rest in problems]
        raise ConvertError.listing(NO_MODEL, said) from None


def one_value(settings: dict[str, Any], *keys: str) -> Any:
    """The value that a setting has under all of its names, section.key or key; None where it has none.

    Raises ConvertError where they differ.
    """
    found = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        value = ((settings.get(section) or {}) if section else settings).get(name)
        if value is not None:
            found[key] = value
    if len(set(found.values())) > 1:
        said = ", ".join(f"{key} = {value!r}" for key, value in found.items())
        raise ConvertError(f"config.json: {said} are one setting and have to agree")
    return next(iter(found.values()), None)

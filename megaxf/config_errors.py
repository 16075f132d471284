"""Turns pydantic's list of errors into sentences that name the full key, the value, the reason and the nearest key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel


class ConfigError(ValueError):
    """One or more faults of a configuration; the message lists all of them."""

    user_fault = True
    """Printed by the command line without a traceback."""

    def __init__(self, origin: str, problems: list[str]):
        self.origin, self.problems = origin, problems
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__("\n".join([f"{origin}: {count}", *(f"  - {problem}" for problem in problems)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.origin, self.problems)


WORDS = {
    "model_type": "should be a mapping of settings",
    "dict_type": "should be a mapping",
    "tuple_type": "should be a list",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "string_type": "should be text",
    "string_too_short": "should not be empty",
    "too_short": "should have an entry",
}
"""What is wanted, in YAML's words where pydantic's are Python's."""


def explain(faults: Sequence[Any], model: type[BaseModel], settings: Mapping[str, Any]) -> list[str]:
    """One sentence for each fault, in the order found.

    faults: ValidationError.errors(). settings: what was validated.
    """
    sentences: list[str] = []
    for fault in faults:
        if fault["type"] == "default_factory_not_called":  # Follows from another fault, which is listed.
            continue
        sentences.extend(_sentence(fault, model, settings).split("\n"))
    return sentences


def _sentence(fault: Any, model: type[BaseModel], settings: Mapping[str, Any]) -> str:
    key = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in _keys(fault["loc"], settings))[1:]
    if fault["type"] == "extra_forbidden":
        return f"{key} is not a setting; {_nearest(key, fault['loc'], model)}"
    if fault["type"] == "missing":
        return f"{key} is missing; it has no default"
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        # Rules about a whole section name the key themselves.
        return message if not key or message.startswith(key.split(".")[0]) else f"{key}: {message}"
    if fault["type"] == "union_tag_not_found":
        return f"{key} needs the setting {fault['ctx']['discriminator']}, which says what kind it is"
    if fault["type"] == "union_tag_invalid":
        tag = fault["ctx"]["discriminator"].strip("'")
        return f"{key}.{tag} = {_yaml(fault['ctx']['tag'])}: should be one of {fault['ctx']['expected_tags']}"
    wanted = WORDS.get(fault["type"], fault["msg"].removeprefix("Input ").removeprefix("Value "))
    return f"{key} = {_yaml(fault['input'])}: {wanted}{_hint(fault['input'], fault['type'])}"


def _keys(location: Sequence[Any], settings: Any) -> list[str]:
    """The keys of a fault as they stand in the file: without the name of the chosen kind that pydantic puts between."""
    keys = []
    for part in location[:-1]:
        if isinstance(settings, Mapping | Sequence) and not isinstance(settings, str) and _has(settings, part):
            keys.append(str(part))
            settings = settings[part]
    return [*keys, *(str(part) for part in location[-1:])]


def _has(settings: Any, part: Any) -> bool:
    return part in settings if isinstance(settings, Mapping) else isinstance(part, int) and part < len(settings)


def _nearest(key: str, location: Sequence[Any], model: type[BaseModel]) -> str:
    above, _, name = key.rpartition(".")
    names = list(_fields(location[:-1], model))
    if close := get_close_matches(name, names, n=1, cutoff=0.5):
        return f"did you mean {f'{above}.' if above else ''}{close[0]}?"
    if elsewhere := [path for path in _leaves(model) if path.endswith(f".{name}")]:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(names)}"


def _fields(path: Sequence[Any], annotation: Any) -> Mapping[str, Any]:
    """The settings that pydantic knows at a location."""
    for part in path:
        known = _model_fields(annotation)
        annotation = known[part].annotation if part in known else _inside(annotation, part)
    return _model_fields(annotation)


def _model_fields(annotation: Any) -> Mapping[str, Any]:
    """The fields by the names that they have in a file."""
    return {field.alias or name: field for name, field in getattr(annotation, "model_fields", {}).items()}


def _inside(annotation: Any, part: Any) -> Any:
    """What `part` stands for where it is no field: an entry of `dict[str, X]`, or the kind of a union so named."""
    choices = [choice for choice in _flatten(annotation) if _model_fields(choice)]
    for choice in choices:
        if any(part in get_args(field.annotation) for field in _model_fields(choice).values()):
            return choice
    return choices[0] if choices else None


def _flatten(annotation: Any) -> Iterator[Any]:
    """The types of a union within a union, or of `Annotated`."""
    yield annotation
    for argument in get_args(annotation):
        yield from _flatten(argument)


def _leaves(model: type[BaseModel]) -> Iterator[str]:
    """Every setting as `section.key`."""
    for section, field in model.model_fields.items():
        for name in _model_fields(field.annotation):
            yield f"{section}.{name}"


def _yaml(value: Any) -> str:
    """The value as a user would write it."""
    return json.dumps(value, ensure_ascii=False, default=str).replace("Infinity", ".inf").replace("NaN", ".nan")


def _hint(value: Any, kind: str) -> str:
    """Where a text is a number or a truth value in quotes, how to write it."""
    if not isinstance(value, str):
        return ""
    if kind == "bool_type" and value.lower() in ("true", "false"):
        return f" (this is text; write {value.lower()} without quotes)"
    try:
        number: float = int(value) if kind == "int_type" else float(value)
    except ValueError:
        return ""
    return f" (this is text; write {number!r} without quotes)"

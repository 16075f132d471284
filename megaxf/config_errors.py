"""Turns pydantic's list of errors into sentences that name the full key, the value, the reason and the nearest key."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError


class ConfigError(ValueError):
    """One or more faults of a configuration; the message lists all of them."""

    user_fault = True
    """Printed by the command line without a traceback."""

    def __init__(self, origin: str, problems: list[str]):
        self.problems = problems
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__("\n".join([f"{origin}: {count}", *(f"  - {problem}" for problem in problems)]))


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One sentence for each fault, in the order found."""
    sentences: list[str] = []
    for fault in error.errors():
        if fault["type"] == "default_factory_not_called":  # Follows from another fault, which is listed.
            continue
        sentences.extend(_sentence(fault, model).split("\n"))
    return sentences


def _sentence(fault: Any, model: type[BaseModel]) -> str:
    keys = [str(part) for part in fault["loc"]]
    key = ".".join(keys)
    if fault["type"] == "extra_forbidden":
        return f"{key} is not a setting; {_nearest(keys, model)}"
    if fault["type"] == "missing":
        return f"{key} is missing; it has no default"
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        return message
    hint = _yaml_hint(fault["input"])
    return f"{key} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}{hint}"


def _nearest(keys: list[str], model: type[BaseModel]) -> str:
    names = _field_names(keys[:-1], model)
    close = get_close_matches(keys[-1], names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {'.'.join([*keys[:-1], close[0]])}?"
    return f"known here: {', '.join(names)}"


def _field_names(path: list[str], model: Any) -> list[str]:
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else _value_type(model)
    return list(getattr(model, "model_fields", {}))


def _value_type(annotation: Any) -> Any:
    """The element type of `dict[str, X]` or the first model of a union, where a key names an entry rather than a field."""
    arguments = getattr(annotation, "__args__", ())
    models = [a for a in arguments if hasattr(a, "model_fields")]
    return models[0] if models else None


def _yaml_hint(value: Any) -> str:
    """YAML 1.1 reads 1e-4 and 3e8 as text: say so, since that is the usual cause."""
    if not isinstance(value, str):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    return f" (the value is text, not a number; write {number!r} without quotes)"

"""Finds and reads the YAML files of a run, and applies `section.key=value` overrides.

Scalars are read as YAML 1.2 and most people read them: 1e-4 is a number, `no` and 1:30 are text, 010 is not eight.
"""

from __future__ import annotations

import importlib.resources
import os
import re
from pathlib import Path
from typing import Any

import yaml

from megaxf.config_errors import ConfigError


class _Loader(yaml.SafeLoader):
    """The safe loader, with YAML 1.2's numbers (1e-4 is a float) and without its silence on doubled keys.

    What is not what its tag says (`!!int x`), or contains itself, is an error that names the line.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node, made whole at once, by which PyYAML notices one that contains itself."""
        try:
            return super().construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError, TypeError):  # PyYAML's own functions check nothing.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r} is not of the type !!{kind}", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are all different."""
        keys = [str(key.value) for key, _ in node.value]
        doubled = sorted({key for key in keys if keys.count(key) > 1})
        if doubled:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {', '.join(doubled)} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Puts quotes around a text that YAML 1.1 or 1.2 would take for something else."""


_SCALARS = {
    "merge": (r"<<", ["<"]),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(0|[1-9][\d_]*|0x[\da-fA-F]+)", list("-+0123456789")),
    "float": (
        r"[-+]?(\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+|\d[\d_]*\.[\d_]*|\.\d+([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}
"""Type -> what it looks like, and the characters that it starts with."""
_Loader.yaml_implicit_resolvers = {}
for _type in (_Loader, _Dumper):
    for _tag, (_pattern, _first) in _SCALARS.items():
        _type.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^({_pattern})$"), _first)


def parse_yaml(text: str, origin: str, prefix: str = "") -> Any:
    """The value of a YAML text. Raises ConfigError with origin and line."""
    try:
        return yaml.load(text, _Loader)  # a subclass of SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(origin, [f"{prefix}not valid YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError(origin, [f"{prefix}not valid YAML: it is nested too deeply"]) from None


def dump_yaml(settings: dict[str, Any]) -> str:
    """Plain settings as text that this module and other readers of YAML take alike."""
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_run_file(path: Path, overrides: list[str]) -> tuple[dict[str, Any], list[str]]:
    """(the settings of a run file with its model filled in and the overrides applied, what was wrong with those).

    Raises ConfigError where a file cannot be read.
    """
    settings = _read_mapping(path)
    given: dict[str, Any] = {}
    problems = []
    for override in overrides:
        try:
            key, value = _split_override(override)
            given[key] = value
        except ConfigError as error:
            problems += error.problems
    if "model" in given:
        settings["model"] = given.pop("model")
    if isinstance(settings.get("model"), str):
        settings["model"] = _read_mapping(_find_model_file(settings["model"], path))
    for key, value in given.items():
        problems += _set(settings, key.split("."), value)
    return settings, problems


def read_model_file(name: str) -> dict[str, Any]:
    """The settings of a model by its name in configs/models or its path. Raises ConfigError where it cannot be read."""
    return _read_mapping(_find_model_file(name, Path("command line")))


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), ["there is no such file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read: {error}"]) from None
    settings = parse_yaml(text, str(path))
    if not isinstance(settings, dict):
        raise ConfigError(str(path), ["is not a mapping of settings"])
    return settings


def _find_model_file(name: str, run_file: Path) -> Path:
    """A name of configs/models, or a path (relative to the run file or the current folder)."""
    shipped = Path(str(importlib.resources.files("configs"))) / "models"
    for candidate in (shipped / f"{name}.yaml", run_file.parent / name, Path(name)):
        if os.path.isfile(candidate):  # unlike Path.is_file, false for a name that is too long for one
            return candidate
    known = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
    raise ConfigError(str(run_file), [f"model = {name!r} is neither a file nor a model of configs/models: {known}"])


def _split_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(\.[\w-]+)*", key):
        raise ConfigError("command line", [f"{text!r} is not an override; write section.key=value"])
    return key, parse_yaml(value, f"override {key}", f"{key}={value}: ")


def _set(settings: dict[str, Any], path: list[str], value: Any) -> list[str]:
    """Set one key; gives a sentence where there is no place for it."""
    for depth, part in enumerate(path[:-1]):
        if settings.get(part) is None:
            settings[part] = {}
        if not isinstance(settings[part], dict):
            key = ".".join(path[: depth + 1])
            return [f"{'.'.join(path)} cannot be set: {key} = {settings[part]!r} has no settings below it"]
        settings = settings[part]
    settings[path[-1]] = value
    return []

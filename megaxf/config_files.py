"""Finds and reads the YAML files of a run, and applies `section.key=value` overrides."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Any

import yaml

from megaxf.config_errors import ConfigError


class _Loader(yaml.SafeLoader):
    """The safe loader, with YAML 1.2's numbers (1e-4 is a float) and without its silence on doubled keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are all different."""
        keys = [self.construct_object(key) for key, _ in node.value]  # type: ignore[no-untyped-call]
        doubled = sorted({str(key) for key in keys if keys.count(key) > 1})
        if doubled:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {', '.join(doubled)} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(  # type: ignore[no-untyped-call]
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$|^[-+]?\d[\d_]*\.[\d_]*$|^[-+]?\.\d+([eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, origin: str) -> Any:
    """The value of a YAML text. Raises ConfigError with origin and line."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(origin, [f"not valid YAML: {' '.join(str(error).split())}"]) from None


def read_run_file(path: Path, overrides: list[str]) -> dict[str, Any]:
    """The settings of a run file with its model filled in and the overrides applied, not yet validated."""
    settings = _read_mapping(path)
    model = settings.get("model")
    given = {key: value for key, value in map(_split_override, overrides)}
    model = given.pop("model", model)
    if isinstance(model, str):
        settings["model"] = _read_mapping(_find_model_file(model, path))
    for key, value in given.items():
        _set(settings, key.split("."), value)
    return settings


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
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
    raise ConfigError(str(run_file), [f"model = {name!r} is neither a file nor a model of configs/models: {known}"])


def _split_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(\.[\w-]+)*", key):
        raise ConfigError("command line", [f"{text!r} is not an override; write section.key=value"])
    return key, parse_yaml(value, f"override {key}")


def _set(settings: dict[str, Any], path: list[str], value: Any) -> None:
    for depth, part in enumerate(path[:-1]):
        below = settings.setdefault(part, {})
        if not isinstance(below, dict):
            key = ".".join(path[: depth + 1])
            raise ConfigError("command line", [f"{'.'.join(path)}: {key} = {below!r} has no settings below it"])
        settings = below
    settings[path[-1]] = value

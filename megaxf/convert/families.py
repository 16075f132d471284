"""How a model family looks in Hugging Face's folders: a family a file of this folder, which has the family's name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from megaxf.convert.errors import ConvertError
from megaxf.convert.settings import TokenIds
from megaxf.convert.tables import Rule
from megaxf.models.registry import ModelConfig, families


class Family(Protocol):
    """What the file of a family has."""

    MODEL_TYPES: Sequence[str]
    """The values of `model_type` in config.json that it covers."""
    RULES: Sequence[Rule]
    """How tensors differ; those that no rule is about have one name and shape on both sides."""
    PREFIX: str
    """What all names but the head's begin with; files of the bare model leave it out."""
    DERIVED: str
    """Regular expression of the names of tensors that follow from config.json, and are not read."""
    TABLE: str
    """Name of the embedding table."""
    HEAD: str
    """Name of the output matrix; it is not written where it is the table."""

    def check(self, config: Any) -> None:
        """Raises ConvertError where no architecture of Hugging Face computes what the model does."""

    def to_huggingface(self, config: Any, ids: TokenIds, dtype: str) -> dict[str, Any]:
        """The content of config.json. dtype: of the weights in the files, as torch names it."""

    def from_huggingface(self, settings: dict[str, Any]) -> ModelConfig:
        """The family's Config. Raises ConvertError naming everything that is missing or that megaxf has not."""


def of(config: ModelConfig) -> Family:
    """The file of a model's family."""
    return _file(config.family)


def of_settings(settings: dict[str, Any]) -> Family:
    """The file of the family that a config.json is about. Raises ConvertError where there is none."""
    kind = settings.get("model_type")
    known = {model_type: name for name in families() for model_type in _file(name).MODEL_TYPES}
    if kind not in known:
        raise ConvertError(f"config.json: model_type = {kind!r} is not known here; megaxf has {', '.join(known)}")
    return _file(known[kind])


def _file(name: str) -> Family:
    module: Any = import_module(f"megaxf.convert.{name}")
    return module

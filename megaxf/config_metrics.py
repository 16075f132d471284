"""What is written about a run while it runs: the sections `metrics` and `profile`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from megaxf.config_section import NonNegative, Positive, PositiveFloat, Section


class Wandb(Section):
    """Weights & Biases: what TensorBoard gets, sent there by rank 0."""

    project: str = Field(min_length=1)
    entity: str | None = None
    """The user or team; by default that of the key."""
    name: str | None = None
    """What the run is called there; by default as its folder."""
    mode: Literal["online", "offline"] = "online"
    """offline: written into the run folder, for `wandb sync`."""


class Metrics(Section):
    """What is written beside the console line."""

    tensorboard: bool = True
    wandb: Wandb | None = None
    statistics_every: NonNegative = 50
    """Steps between those whose groups of layers are looked at, the first among them; 0 for none."""
    layer_groups: Positive = 8
    """The most groups of neighbouring layers; beside them the embedding and the head are one each."""
    peak_tflops: PositiveFloat | None = None
    """Peak dense TFLOP/s of one device for the MFU; by default from the hardware table, else measured at the start."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Metrics:
        if not self.statistics_every and self.layer_groups != Metrics.model_fields["layer_groups"].default:
            raise ValueError(
                f"metrics.layer_groups = {self.layer_groups} has no effect with metrics.statistics_every = 0; remove it"
            )
        return self


class Profile(Section):
    """A few steps, looked at operation by operation."""

    steps: str | None = None
    """The first and the last, such as 10:12; none by default."""
    ranks: list[NonNegative] = Field([0], min_length=1)
    """Whose steps."""

    @field_validator("steps", mode="before")
    @classmethod
    def _is_a_range(cls, value: Any) -> Any:
        if value is None:
            return value
        found = re.fullmatch(r"(\d+):(\d+)", str(value))
        if not found:
            raise ValueError(
                f"profile.steps = {value} is not a first and a last step with a colon between them; use such as 10:12"
            )
        first, last = map(int, found.groups())
        if not 1 <= first <= last:
            raise ValueError(
                f"profile.steps = {value} has no step in it: the first is 1 or more, and the last not before it"
            )
        return value

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Profile:
        if self.steps is None and self.ranks != [0]:
            raise ValueError(f"profile.ranks = {self.ranks} has no effect without profile.steps; remove it")
        return self

    def window(self) -> range:
        """The steps."""
        if self.steps is None:
            return range(0)
        first, last = map(int, self.steps.split(":"))
        return range(first, last + 1)

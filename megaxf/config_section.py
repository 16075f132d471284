"""What every section of the run is made of: a strict base and the kinds of numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LIMIT = 2**63
"""Of whole numbers: what arrays, files and torch hold."""
Positive = Annotated[int, Field(gt=0, lt=LIMIT)]
NonNegative = Annotated[int, Field(ge=0, lt=LIMIT)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of the run: unknown keys, wrong types and silent conversions ("1e-4" for 1e-4) are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

"""What a run does about numbers, ranks and machines that fail: the section `guards` of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from megaxf.config_section import NonNegative, Positive, PositiveFloat, Section

REWIND = "rewind-and-skip-data"
Policy = Literal["stop", "skip", "rewind-and-skip-data"]


class Guards(Section):
    """Policies for a loss or gradient that is not finite and for spikes of the loss; checks of replicas and ranks.

    stop: end the run. skip: make no update from the batch and go on. rewind-and-skip-data: go back to the newest
    checkpoint and pass over the batches up to the one at fault. record: only say so.
    """

    on_non_finite: Policy = "stop"
    on_spike: Literal["record", "stop", "skip", "rewind-and-skip-data"] = "record"
    spike_threshold: PositiveFloat = 8.0
    """Robust standard deviations (1.4826 x median absolute deviation) above the median at which a loss is a spike."""
    spike_window: Annotated[int, Field(ge=8)] = 128
    """Steps whose losses give the median; a spike is judged once half of them are there, counted from the warm-up."""
    max_skips: Positive = 3
    """Steps in a row that may be skipped; the next one stops the run."""
    max_rewinds: Positive = 5
    """Of the whole run."""
    rewind_batches: Positive = 100
    """With rewind-and-skip-data: how many batches are passed over at most, up to the one at fault."""
    replica_check_every: NonNegative = 100
    """Steps between comparisons of the weights of data-parallel ranks, 0 for none; ZeRO 3 has no replicas."""
    timeout_seconds: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    """How long a rank may be silent or stand still before the run is ended everywhere."""
    stragglers_every: NonNegative = 100
    """Steps between comparisons of the ranks' own speed, 0 for none."""
    straggler_ratio: Annotated[float, Field(gt=1)] = 1.5
    """Times the median of all ranks from which on a rank is called slow."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Guards:
        policies = {self.on_non_finite, self.on_spike}
        rewinds = REWIND in policies
        uses = {"max_skips": "skip" in policies, "max_rewinds": rewinds, "rewind_batches": rewinds}
        idle = [name for name, used in uses.items() if not used and getattr(self, name) != _default(name)]
        if idle:
            needed = "skip" if idle == ["max_skips"] else REWIND
            raise ValueError(
                f"guards.{idle[0]} = {getattr(self, idle[0])} has no effect while neither guards.on_non_finite nor "
                f"guards.on_spike is {needed}; remove it, or use that policy"
            )
        return self


def _default(name: str) -> object:
    return Guards.model_fields[name].default

"""What has to hold between the sections of a run: a check a function, and its row in a table.

A check takes the sections it is about and gives a sentence for each problem. One whose sections are right in themselves
runs even where other sections are wrong, so that all errors come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from megaxf.config_layout import LAYOUT_CHECKS, divisors


def disagreements(sections: Mapping[str, Any]) -> list[str]:
    """The problems of all checks whose sections are there."""
    return [
        problem
        for check, names in (CHECKS | LAYOUT_CHECKS).items()
        if all(name in sections for name in names)
        for problem in check(*(sections[name] for name in names))
    ]


def _sequence_fits_the_model(data: Any, model: Any) -> Iterator[str]:
    limit = getattr(model, "max_position_embeddings", None)
    if limit is not None and data.sequence_length > limit:
        yield (
            f"data.sequence_length = {data.sequence_length} is beyond model.max_position_embeddings = {limit}; "
            "shorten the sequence or raise the limit"
        )


def _weights_have_an_effect(data: Any) -> Iterator[str]:
    if len(data.sources) == 1:
        ((name, source),) = data.sources.items()
        if source.weight != 1.0:
            yield f"data.sources.{name}.weight = {source.weight} has no effect with one source; remove it"


def _batches_are_whole(train: Any) -> Iterator[str]:
    if train.global_batch_size % train.micro_batch_size:
        yield (
            f"train.micro_batch_size = {train.micro_batch_size} does not divide train.global_batch_size = "
            f"{train.global_batch_size}; use one of {divisors(train.global_batch_size)}"
        )


def _schedule_fits_the_run(schedule: Any, train: Any) -> Iterator[str]:
    warmup, decay = schedule.warmup_steps, schedule.decay_steps or 0
    if warmup > train.steps:
        yield (
            f"schedule.warmup_steps = {warmup} is longer than the run, train.steps = {train.steps}; shorten the warm-up"
        )
    elif warmup + decay > train.steps:
        yield (
            f"schedule.warmup_steps + schedule.decay_steps = {warmup + decay} is longer than the run, train.steps = "
            f"{train.steps}; shorten one"
        )


def _peak_is_the_peak(schedule: Any, optimizer: Any) -> Iterator[str]:
    if schedule.min_learning_rate > optimizer.learning_rate:
        yield (
            f"schedule.min_learning_rate = {schedule.min_learning_rate} is above the peak, optimizer.learning_rate = "
            f"{optimizer.learning_rate}; lower it"
        )


CHECKS: dict[Callable[..., Iterator[str]], tuple[str, ...]] = {
    _sequence_fits_the_model: ("data", "model"),
    _weights_have_an_effect: ("data",),
    _batches_are_whole: ("train",),
    _schedule_fits_the_run: ("schedule", "train"),
    _peak_is_the_peak: ("schedule", "optimizer"),
}
"""Each check with the sections that it takes."""

"""What has to hold between the sections of a run: a check a function, and its row in a table.

A check takes the sections it is about and gives a sentence for each problem. One whose sections are right in themselves
runs even where other sections are wrong, so that all errors come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from megaxf.config_data import portions
from megaxf.config_guards import REWIND
from megaxf.config_layout import LAYOUT_CHECKS, divisors
from megaxf.config_section import LIMIT


def disagreements(sections: Mapping[str, Any]) -> list[str]:
    """The problems of all checks whose sections are there, in the run's own settings and in each of its phases."""
    found = _problems(sections)
    for number, later in enumerate(_phases(sections)):
        found += [f"data.phases[{number}]: {problem}" for problem in _problems(later) if problem not in found]
    return found


def _problems(sections: Mapping[str, Any]) -> list[str]:
    return [
        problem
        for check, names in (CHECKS | LAYOUT_CHECKS).items()
        if all(name in sections for name in names)
        for problem in check(*(sections[name] for name in names))
    ]


def _phases(sections: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The sections as they are in each phase of the data but the first, each as a run of that phase alone."""
    if "data" not in sections or "train" not in sections:
        return
    data, train = sections["data"], sections["train"]
    for portion in portions(data, train.global_batch_size)[1:]:
        yield {
            **sections,
            "data": data.model_copy(update={"sequence_length": portion.sequence_length, "phases": []}),
            "train": train.model_copy(update={"global_batch_size": portion.global_batch_size}),
        }


def _sequence_fits_the_model(data: Any, model: Any) -> Iterator[str]:
    limit = getattr(model, "max_position_embeddings", None)
    if limit is not None and data.sequence_length > limit:
        yield (
            f"data.sequence_length = {data.sequence_length} is beyond model.max_position_embeddings = {limit}; "
            "shorten the sequence or raise the limit"
        )


def _shares_have_an_effect(data: Any) -> Iterator[str]:
    if len(data.sources) == 1:
        ((name, source),) = data.sources.items()
        amount, unit = source.share
        if (amount, unit) != (1.0, "weight"):
            yield f"data.sources.{name}.{unit} = {amount} has no effect with one source; remove it"


def _shares_have_one_unit(data: Any) -> Iterator[str]:
    units = {f"data.sources.{name}.{source.share[1]}": source.share[1] for name, source in data.sources.items()}
    if len(set(units.values())) > 1:
        yield f"the sources are shared out by {', '.join(units)}; use weight, tokens or epochs for all of them"


def _phases_are_of_this_run(data: Any, train: Any) -> Iterator[str]:
    for number, phase in enumerate(data.phases):
        here = f"data.phases[{number}]"
        if phase.from_step > train.steps:
            yield f"{here}.from_step = {phase.from_step} is beyond train.steps = {train.steps}; remove the phase"
        if phase.shares is not None and phase.shares.keys() != data.sources.keys():
            yield (
                f"{here}.shares names {', '.join(sorted(phase.shares)) or 'nothing'}, and the sources are "
                f"{', '.join(sorted(data.sources))}; give each its share, 0 for one that is left out"
            )
        elif phase.shares is not None and not any(phase.shares.values()):
            yield f"{here}.shares are all 0; give one source more"


def _phases_change_something(data: Any, train: Any) -> Iterator[str]:
    before = {
        "sequence_length": data.sequence_length,
        "global_batch_size": train.global_batch_size,
        "shares": {name: source.share[0] for name, source in data.sources.items()},
    }
    for number, phase in enumerate(data.phases):
        given = {name: value for name in before if (value := getattr(phase, name)) is not None}
        if given.items() <= before.items():
            yield (
                f"data.phases[{number}] changes nothing: {', '.join(given)} is as it was before step "
                f"{phase.from_step}; remove the phase"
            )
        before |= given


def _epochs_have_a_limit(data: Any) -> Iterator[str]:
    if data.over_max_epochs == "refuse" and all(source.max_epochs is None for source in data.sources.values()):
        yield (
            "data.over_max_epochs = refuse has no effect, since no source has max_epochs; remove it, or give "
            f"data.sources.{next(iter(data.sources))}.max_epochs"
        )


def _replicas_are_there(guards: Any, engine: Any) -> Iterator[str]:
    every, usual = guards.replica_check_every, type(guards).model_fields["replica_check_every"].default
    if engine.zero_stage == 3 and every not in (0, usual):
        yield (
            f"guards.replica_check_every = {every} has no effect with engine.zero_stage = 3, which keeps no replicas "
            "of the weights; remove it"
        )


def _tokens_can_be_counted(data: Any, train: Any) -> Iterator[str]:
    each = max(portion.tokens for portion in portions(data, train.global_batch_size))
    if train.steps * each >= LIMIT:
        yield (
            f"train.steps = {train.steps} of {each} tokens are more than can be counted, 2^63; use fewer steps, or "
            "smaller ones"
        )


def _skipped_steps_are_of_this_run(data: Any, train: Any) -> Iterator[str]:
    for first, last in data.skip_steps:
        if last > train.steps:
            yield f"data.skip_steps has [{first}, {last}], beyond train.steps = {train.steps}; remove or shorten it"


def _lengths_are_parts_of_the_longest(data: Any) -> Iterator[str]:
    lengths = {"data.sequence_length": data.sequence_length}
    for number, phase in enumerate(data.phases):
        if phase.sequence_length is not None:
            lengths[f"data.phases[{number}].sequence_length"] = phase.sequence_length
    longest = data.longest_sequence_length or max(lengths.values())
    for key, length in lengths.items():
        if longest % length:
            yield (
                f"{key} = {length} does not divide the longest sequence of the run, {longest}, of which shorter ones "
                f"are parts; use one of {divisors(longest)}"
            )


def _stores_have_a_cache(data: Any) -> Iterator[str]:
    urls = [f"data.sources.{name}.folder = {one.folder}" for name, one in data.sources.items() if "://" in one.folder]
    if urls and data.cache is None:
        yield f"{urls[0]} is in a store, which is read through a cache; give data.cache.folder, on a node's own disk"
    if data.cache is not None and not urls:
        yield f"data.cache.folder = {data.cache.folder} has no effect, since no source is in a store; remove data.cache"


def _text_comes_alone_and_in_a_row(data: Any) -> Iterator[str]:
    texts = {name: source for name, source in data.sources.items() if source.dataset}
    for name, source in texts.items():
        idle = {
            "data.packing": data.packing != "concat",
            "data.lanes": data.lanes,
            "data.phases": data.phases,
            "data.longest_sequence_length": data.longest_sequence_length,
            "data.skip_steps": data.skip_steps,
            f"data.sources.{name}.max_epochs": source.max_epochs,
            f"data.sources.{name}.train_on": source.train_on != "all",
            f"data.sources.{name}.fill_in_the_middle": source.fill_in_the_middle,
            "other sources": len(data.sources) > 1,
        }
        if given := [key for key, value in idle.items() if value]:
            yield (
                f"data.sources.{name}.dataset is tokenised while training, one document after the other, which does "
                f"not go with {', '.join(given)}; use megaxf prepare, or remove what does not go with it"
            )


def _rewinding_is_possible(guards: Any, checkpoint: Any, data: Any) -> Iterator[str]:
    keys = [name for name in ("on_non_finite", "on_spike") if getattr(guards, name) == REWIND]
    if keys and not checkpoint.every:
        yield (
            f"guards.{keys[0]} = {REWIND} needs checkpoints to go back to, but checkpoint.every = 0 saves the last "
            "step only; set it to some hundreds of steps"
        )
    texts = [name for name, source in data.sources.items() if source.dataset]
    if keys and texts:
        yield (
            f"guards.{keys[0]} = {REWIND} cannot pass over text that is tokenised while training "
            f"(data.sources.{texts[0]}.dataset); use megaxf prepare, or another policy"
        )


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


def _kept_steps_are_saved(checkpoint: Any, train: Any) -> Iterator[str]:
    for key, steps in (("keep_every", checkpoint.keep_every), ("export_every", checkpoint.export_every)):
        if steps is not None and (steps > train.steps or not checkpoint.every or steps % checkpoint.every):
            yield (
                f"checkpoint.{key} = {steps} meets no checkpoint, with checkpoint.every = {checkpoint.every} and "
                f"train.steps = {train.steps}; use a multiple of checkpoint.every, or remove it"
            )
    if checkpoint.export_every and checkpoint.export == "none":
        yield "checkpoint.export_every has no effect with checkpoint.export = none; remove it, or use huggingface"
    if checkpoint.when_busy == "skip" and not checkpoint.asynchronous:
        yield "checkpoint.when_busy has no effect with checkpoint.asynchronous = false; remove one of them"


def _profiled_steps_are_of_this_run(profile: Any, train: Any) -> Iterator[str]:
    if profile.window() and profile.window()[-1] > train.steps:
        yield f"profile.steps = {profile.steps} goes beyond train.steps = {train.steps}; use steps of the run"


def _profiled_ranks_are_there(profile: Any, world_size: int) -> Iterator[str]:
    if 0 < world_size <= max(profile.ranks):
        yield (
            f"profile.ranks = {profile.ranks} names rank {max(profile.ranks)}, and there are {world_size}, counted "
            "from 0; leave it out"
        )


def _run_folder_is_on_a_disk(run_folder: str) -> Iterator[str]:
    if "://" in run_folder:
        yield (
            f"run_folder = {run_folder} is a URL, and metrics are written on a disk; name a folder, and the URL as "
            "checkpoint.folder"
        )


CHECKS: dict[Callable[..., Iterator[str]], tuple[str, ...]] = {
    _sequence_fits_the_model: ("data", "model"),
    _shares_have_an_effect: ("data",),
    _shares_have_one_unit: ("data",),
    _phases_are_of_this_run: ("data", "train"),
    _phases_change_something: ("data", "train"),
    _epochs_have_a_limit: ("data",),
    _replicas_are_there: ("guards", "engine"),
    _tokens_can_be_counted: ("data", "train"),
    _skipped_steps_are_of_this_run: ("data", "train"),
    _lengths_are_parts_of_the_longest: ("data",),
    _stores_have_a_cache: ("data",),
    _text_comes_alone_and_in_a_row: ("data",),
    _rewinding_is_possible: ("guards", "checkpoint", "data"),
    _batches_are_whole: ("train",),
    _schedule_fits_the_run: ("schedule", "train"),
    _peak_is_the_peak: ("schedule", "optimizer"),
    _kept_steps_are_saved: ("checkpoint", "train"),
    _profiled_steps_are_of_this_run: ("profile", "train"),
    _profiled_ranks_are_there: ("profile", "world_size"),
    _run_folder_is_on_a_disk: ("run_folder",),
}
"""Each check with the sections that it takes."""

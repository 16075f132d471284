"""Layers over stages: no split is better, none is lost, and an explicit split is taken as it is."""

from itertools import combinations
from types import SimpleNamespace

import pytest

from megaxf.plan.flops import head_per_sequence, layer_per_sequence, per_sequence
from megaxf.plan.stages import SCHEDULES, balance, parts_of_stage, split_layers
from tests.plan.shapes import shape


def every_split(items, stages, least):
    for cuts in combinations(range(1, items), stages - 1):
        lengths = [end - start for start, end in zip((0, *cuts), (*cuts, items), strict=True)]
        if min(lengths) >= least:
            yield lengths


def sums(costs, fixed, lengths):
    ends = [sum(lengths[: stage + 1]) for stage in range(len(lengths))]
    return [own + sum(costs[end - n : end]) for own, end, n in zip(fixed, ends, lengths, strict=True)]


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize(
    ("costs", "fixed"),
    [
        ([1.0] * 9, [0.0, 0.0, 0.0, 2.5]),
        ([1.0] * 8, [0.0, 0.0, 7.0]),
        ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], [0.5, 0.0, 1.5]),
        ([2.0] * 11, [0.0] * 5),
    ],
)
def test_no_split_has_a_smaller_largest_stage(costs, fixed, least):
    lengths = balance(costs, fixed, least)
    assert sum(lengths) == len(costs)
    assert min(lengths) >= least
    splits = list(every_split(len(costs), len(fixed), least))
    smallest = min(max(sums(costs, fixed, split)) for split in splits)
    assert max(sums(costs, fixed, lengths)) == smallest
    as_good = [sums(costs, fixed, split) for split in splits if max(sums(costs, fixed, split)) == smallest]
    evenness = min(sum(cost**2 for cost in split) for split in as_good)
    assert sum(cost**2 for cost in sums(costs, fixed, lengths)) == evenness


def run_of(layers, stages, schedule, vocab=61, given=None):
    parallel = SimpleNamespace(pipeline_parallel_size=stages, pipeline_schedule=schedule, pipeline_layers=given)
    model = shape(vocab, 64, layers, 160, 4, 2)
    return SimpleNamespace(parallel=parallel, model=model, data=SimpleNamespace(sequence_length=128))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("layers", "stages"), [(8, 2), (9, 2), (11, 3), (12, 4), (13, 4)])
def test_every_layer_is_on_one_stage(layers, stages, schedule):
    split = split_layers(run_of(layers, stages, schedule))
    parts = sorted((part.layers.start, part) for stage in split for part in stage)
    assert [index for _, part in parts for index in part.layers] == list(range(layers))
    assert [part.first for _, part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.last for _, part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) == stages * (1 if schedule == "1f1b" else 2)


def test_the_head_counts_as_the_layers_that_it_costs():
    """A vocabulary of 3 layers' worth; with two parts a stage, the stage of the head has to have 2."""
    model = shape(61, 64, 13, 160, 4, 2)
    vocab = round(3 * 61 * layer_per_sequence(model, 128) / head_per_sequence(model, 128))
    for schedule, of_head, others in (
        ("1f1b", 1, [4, 4, 4]),
        ("interleaved", 2, [3, 4, 4]),
        ("dualpipev", 2, [3, 4, 4]),
    ):
        lengths = [sum(len(part.layers) for part in stage) for stage in split_layers(run_of(13, 4, schedule, vocab))]
        assert lengths.pop(0 if schedule == "dualpipev" else -1) == of_head
        assert sorted(lengths) == others


def test_layers_and_head_make_up_the_model():
    model = shape(61, 64, 13, 160, 4, 2, sliding_window=32)
    assert 13 * layer_per_sequence(model, 128) + head_per_sequence(model, 128) == per_sequence(model, 128)


def test_places_of_parts_and_an_explicit_split():
    assert [parts_of_stage("1f1b", 3, stage) for stage in range(3)] == [[0], [1], [2]]
    assert [parts_of_stage("interleaved", 3, stage) for stage in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [parts_of_stage("dualpipev", 3, stage) for stage in range(3)] == [[0, 5], [1, 4], [2, 3]]
    split = split_layers(run_of(10, 2, "dualpipev", given=[1, 2, 3, 4]))
    assert [[part.layers for part in stage] for stage in split] == [
        [range(1), range(6, 10)],
        [range(1, 3), range(3, 6)],
    ]

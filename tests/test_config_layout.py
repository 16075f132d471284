"""Layouts: what fits is taken, what does not is refused, and the advice is right (field reports 59, 69, 89).

Expected is what a count by hand gives: which ranks would get whole heads, rows, pieces of the sequence, layers.
"""

import itertools
import math
from pathlib import Path

import pytest

from megaxf.config import ConfigError, check_world, load_run, validate
from megaxf.config_layout import divisors

RUNS = sorted((Path(__file__).resolve().parents[1] / "configs" / "runs").glob("*.yaml"))
MODEL = {
    "vocab_size": 1001,
    "hidden_size": 36,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 10,
    "max_position_embeddings": 96,
}


def run(world_size=None, model=None, **sections):
    """A run of 24 rows in micro-batches of 2; `sections` override."""
    settings = {
        "run_folder": "unused",
        "model": MODEL | (model or {}),
        "data": {"sources": {"text": {"folder": "unused"}}, "sequence_length": 48},
        "train": {"steps": 20, "global_batch_size": 24, "micro_batch_size": 2},
        "optimizer": {"learning_rate": 1e-3},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return validate(settings, "tests", world_size=world_size)


def problems(*args, **sections):
    try:
        run(*args, **sections)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(12, 4, 48), (12, 12, 48), (12, 1, 36), (6, 2, 40), (8, 8, 12)]
)
def test_tensor_degrees(heads, kv_heads, width):
    """Right are those that give every rank whole heads, and key/value heads that no two others share unevenly."""
    model = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": width}
    owners = {d: [kv_heads * rank // d for rank in range(d)] for d in range(1, heads + 1)}
    right = [
        d
        for d in owners
        if heads % d == width % d == 0
        and (kv_heads % d == 0 or len({owners[d].count(head) for head in range(kv_heads)}) == 1)
    ]
    advice = f"use one of {', '.join(map(str, right))}"
    for degree in range(1, heads + 2):
        found = problems(model=model, parallel={"tensor_parallel_size": degree})
        assert bool(found) == (degree not in right), degree
        assert all(problem.endswith(advice) for problem in found)


def test_divisors():
    for number in range(1, 200):
        found = [d for d in range(1, number + 1) if number % d == 0]
        assert divisors(number) == ", ".join(map(str, found[:8])) + ", ..." * (len(found) > 8)
    assert divisors(3000000001) == "1, 7589, 395309, 3000000001"
    assert divisors(2**61 - 1) == "1, ...", "a prime: not sought to the end"


def test_sequences():
    """With context 2 and tensor 3: pieces of 1/4, and between the matrices of 1/6."""
    for length in range(1, 97):
        data = {"sequence_length": length}
        sizes = {"context_parallel_size": 2, "tensor_parallel_size": 3}
        model = {"num_key_value_heads": 3}
        assert bool(problems(model=model, data=data, parallel=sizes)) == (length % 4 > 0)
        found = problems(model=model, data=data, parallel=sizes | {"sequence_parallel": True})
        assert bool(found) == (length % 12 > 0)
        for problem in found:
            for advised in problem.rpartition("= ")[2].split(" or "):
                assert int(advised) % 12 == 0 and abs(int(advised) - length) < 12


def test_stages():
    for stages, schedule in itertools.product(range(2, 9), ("1f1b", "interleaved", "dualpipev")):
        parallel = {"pipeline_parallel_size": stages, "pipeline_schedule": schedule}
        parts = stages if schedule == "1f1b" else 2 * stages
        assert bool(problems(parallel=parallel)) == (parts > 6)
        if parts <= 6:
            split = [1] * (parts - 1) + [7 - parts]
            assert problems(parallel=parallel | {"pipeline_layers": split}) == []
            assert len(problems(parallel=parallel | {"pipeline_layers": [*split, 1]})) == 2
            assert len(problems(parallel=parallel | {"pipeline_layers": [2, *split[1:]]})) == 1


@pytest.mark.parametrize("world_size", [1, 2, 4, 6, 8, 12, 24, 25])
def test_worlds(world_size):
    """24 rows, 2 in a micro-batch, fit 1, 2, 3, 4, 6 and 12 data-parallel ranks."""
    for pipeline, context, tensor in itertools.product((1, 2), (1, 2), (1, 4)):
        parallel = {
            "pipeline_parallel_size": pipeline, "context_parallel_size": context, "tensor_parallel_size": tensor,
        }  # fmt: skip
        ranks, rest = divmod(world_size, pipeline * context * tensor)
        found = problems(world_size, parallel=parallel)
        assert (found == []) == (rest == 0 and ranks in (1, 2, 3, 4, 6, 12)), (world_size, parallel)
        if rest:
            assert f"does not divide the number of processes, {world_size};" in found[0]


def test_dualpipev_needs_twice_as_many_micro_batches_as_stages():
    """24 rows in twos are 12 micro-batches: for 1 data-parallel rank 12, for 2 ranks 6, for 4 ranks 3."""
    parallel = {"pipeline_parallel_size": 2, "pipeline_schedule": "dualpipev"}
    assert [len(problems(world, parallel=parallel)) for world in (2, 4, 6, 8)] == [0, 0, 0, 1]
    assert "use train.global_batch_size = 32 or more" in problems(8, parallel=parallel)[0]
    assert problems(8, parallel=parallel, train={"global_batch_size": 32}) == []
    assert problems(24, parallel=parallel | {"pipeline_schedule": "1f1b"}) == [], "1F1B takes a single one"


def test_interleaved_stages_take_whole_rounds_of_micro_batches():
    """24 rows in twos, stages in twos and threes: 12 micro-batches for 1 data-parallel rank, 6, 4 and 3 for more."""
    parallel = {"pipeline_parallel_size": 2, "pipeline_schedule": "interleaved"}
    assert [len(problems(world, parallel=parallel)) for world in (2, 4, 6, 8)] == [0, 0, 0, 1]
    assert "use train.global_batch_size = 16 or 32" in problems(8, parallel=parallel)[0]
    parallel["pipeline_parallel_size"] = 3
    assert [len(problems(world, parallel=parallel)) for world in (3, 6, 9, 12)] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True}},
        {"parallel": {"context_parallel_size": 2, "tensor_parallel_size": 12}, "engine": {"zero_stage": 3}},
        {"parallel": {"order": ["tensor", "context", "data", "pipeline"]}},
        {"engine": {"zero_stage": 1, "offload_optimizer": "cpu"}},
        {"engine": {"zero_stage": 3, "offload_optimizer": "nvme", "offload_parameters": "cpu", "nvme_folder": "/x"}},
        {"engine": {"zero_stage": 1}, "train": {"precision": "fp16"}},
        {"train": {"recompute": "selective", "recompute_every": 6}},
    ],
)
def test_what_fits_is_taken(sections):
    assert problems(**sections) == []


def test_everything_is_told_at_once():
    """Also about ranks, and where a section is not right in itself."""
    faults = problems(
        7,
        model={"num_hidden_layers": 1},
        parallel={"tensor_parallel_size": 5, "pipeline_parallel_size": 2, "order": ["data"]},
        engine={"zero_stage": 3, "nvme_folder": "/x"},
        train={"recompute_every": 2},
        optimizer={"learning_rate": "high"},
    )
    assert [fault.partition(" ")[0] for fault in faults] == [
        "optimizer.learning_rate",
        "parallel.order",
        "parallel.tensor_parallel_size",
        "parallel.tensor_parallel_size",
        "parallel.tensor_parallel_size",
        "parallel.pipeline_parallel_size",
        "engine.zero_stage",
        "engine.nvme_folder",
        "train.recompute_every",
        "train.recompute_every",
        "parallel.pipeline_parallel_size",
    ]


def test_a_run_is_checked_again_where_the_ranks_are_there():
    with pytest.raises(ConfigError, match=r"world size 5: 1 error\n  - train.global_batch_size = 24 is not a multiple"):
        check_world(run(), 5)
    check_world(run(), 6)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_shipped_run_fits_its_ranks(path):
    """A number at the end of the name is that of the ranks."""
    number = path.stem.rpartition("-")[2]
    ranks = int(number) if number.isdigit() else 1
    shipped = load_run(path, world_size=ranks)
    of_one_model = math.prod(shipped.parallel.degrees().values())
    rows_at_once = shipped.train.micro_batch_size * (ranks // of_one_model)
    assert ranks % of_one_model == 0 and shipped.train.global_batch_size % rows_at_once == 0


@pytest.mark.parametrize("words", range(5, 40))
def test_every_tensor_rank_has_a_part_of_the_vocabulary(words):
    """Parts of ceil(words / ranks) rows, dealt out in order: the last rank must get one."""
    model = {"num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 48, "vocab_size": words}
    for ranks in (2, 3, 4, 6, 12):
        part = -(-words // ranks)
        dealt = [max(0, min(part, words - rank * part)) for rank in range(ranks)]
        refused = bool(problems(model=model, parallel={"tensor_parallel_size": ranks}))
        assert refused == (dealt[-1] == 0), (words, ranks)

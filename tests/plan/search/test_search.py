"""The search against every run that megaxf.config accepts, and against what published runs chose."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from megaxf.config import ConfigError, load_model, validate
from megaxf.plan.errors import PlanError
from megaxf.plan.memory.advice import need
from megaxf.plan.memory.ledger import ledgers
from megaxf.plan.search.bound import least_bytes
from megaxf.plan.search.find import choice, rank, search
from megaxf.plan.search.runfile import steps_for
from megaxf.plan.search.space import Candidate, Task, as_run, candidates, columns
from megaxf.plan.stages import SCHEDULES
from megaxf.plan.throughput.hardware import find
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.step import predict

GIB = 2**30
SMALL = {
    "family": "llama",
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 256,
}
RANKS, BATCH, LENGTH = 4, 8, 256


def task(name, length, batch, gpu, ranks, gib=79.0, **more):
    return Task(load_model(name), length, batch, find(gpu), ranks, gib * GIB, **more)


def settings_of(candidate, batch, length, model=SMALL):
    sections = candidate.settings()
    return {
        "run_folder": "unused",
        "model": model,
        "data": {"sources": {"text": {"folder": "unused"}}, "sequence_length": length},
        "train": sections["train"] | {"steps": 10, "global_batch_size": batch},
        "optimizer": {"learning_rate": 1e-3},
        "parallel": sections["parallel"],
        "engine": sections["engine"],
    }


def accepted(ranks, batch, length):
    """Every candidate, valid or not, that makes a run that megaxf.config accepts, with that run."""
    sizes = range(1, ranks + 1)
    schedules, modes = ("1f1b", "interleaved", "dualpipev"), ("none", "selective", "full")
    for t, sp, c, p in product(sizes, (False, True), sizes, sizes):
        if ranks % (t * c * p):
            continue
        for rest in product(schedules, range(4), range(1, batch + 1), modes):
            candidate = Candidate(t, sp, c, p, *rest)
            try:
                yield candidate, validate(settings_of(candidate, batch, length), "brute", None, ranks)
            except ConfigError:
                continue


@pytest.fixture(scope="module")
def brute():
    """Each accepted run with its seconds and its bytes."""
    found = {}
    for candidate, run in accepted(RANKS, BATCH, LENGTH):
        found[candidate] = float(predict(layout(run, RANKS), find("h100")).seconds), need(ledgers(run, RANKS))
    return found


def small_task(memory=80e9):
    plain = Candidate(1, False, 1, 1, "1f1b", 1, 1, "none")
    model = validate(settings_of(plain, BATCH, LENGTH), "small").model
    return Task(model, LENGTH, BATCH, find("h100"), RANKS, memory)


def test_the_space_is_what_run_files_may_have(brute):
    assert len(brute) > 300
    assert set(candidates(small_task())) == set(brute)


@pytest.mark.parametrize("quantile", [0.05, 0.3, 0.6, 1.0])
def test_the_winner_is_that_of_brute_force(brute, quantile):
    memory = float(np.quantile([size for _, size in brute.values()], quantile))
    fitting = sorted(seconds for seconds, size in brute.values() if size <= memory)
    best = search(small_task(memory), 10).best
    assert [float(chosen.step.seconds) for chosen in best] == pytest.approx(fitting[: len(best)], rel=1e-9)
    for chosen in best:
        assert brute[chosen.candidate] == (pytest.approx(float(chosen.step.seconds)), chosen.need)


def test_the_bound_is_below_every_ledger(brute):
    every = list(brute)
    bounds = least_bytes(columns(small_task(), every))
    sizes = np.array([brute[candidate][1] for candidate in every])
    assert np.all(bounds <= sizes)
    assert np.median(bounds / sizes) > 0.95


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("name", "length", "batch", "ranks"), [("llama3-8b", 8192, 64, 64), ("llama3-405b", 8192, 1024, 4096)]
)
def test_the_bound_is_below_ledgers_of_large_models(name, length, batch, ranks, schedule):
    given = task(name, length, batch, "h100", ranks)
    every = list(candidates(given))
    piped = [candidate for candidate in every if candidate.pipeline_schedule == schedule]
    chosen = [piped[place] for place in np.random.default_rng(0).choice(len(piped), 40, replace=False)]
    bounds = least_bytes(columns(given, chosen))
    sizes = np.array([choice(given, candidate).need for candidate in chosen])
    assert np.all(bounds <= sizes * (1 + 1e-12))
    heavy = sizes > 40 * GIB  # about a limit the bound should be near; beside little, the loss and buffers count
    assert np.median(bounds[heavy] / sizes[heavy]) > 0.8


def test_many_at_once_are_predicted_as_each_alone():
    given = task("llama2-70b", 4096, 256, "h100", 256)
    every = list(candidates(given))[::97]
    together = predict(columns(given, every), given.hardware).seconds
    assert together == pytest.approx([float(choice(given, each).step.seconds) for each in every], rel=1e-9)


def test_16384_gpus_need_few_ledgers():
    """Bounds leave so little to count that the search takes under a second of one core (docs/plan.md)."""
    found = search(task("llama3-405b", 8192, 2048, "h100", 16384))
    assert len(found.best) == 10
    assert found.candidates > 20_000
    assert found.counted < 50
    seconds = [float(chosen.step.seconds) for chosen in found.best]
    assert seconds == sorted(seconds)
    assert all(chosen.need <= 79 * GIB for chosen in found.best)


PUBLISHED = {
    # TorchTitan (arXiv 2410.06511, its benchmarks of December 2024), and IBM and PyTorch for Llama 2 7B.
    "torchtitan 8": (("llama3-8b", 8192, 16, "h100", 8, 88), Candidate(1, False, 1, 1, "1f1b", 3, 2, "selective")),
    "torchtitan 128": (("llama3-8b", 8192, 256, "h100", 128), Candidate(1, False, 1, 1, "1f1b", 3, 2, "selective")),
    "ibm 128": (("llama2-7b", 4096, 256, "a100", 128), Candidate(1, False, 1, 1, "1f1b", 3, 2, "none")),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_are_among_the_first_five(name):
    words, candidate = PUBLISHED[name]
    assert rank(task(*words), candidate) <= 5


def test_where_llama_3_lies_and_what_is_better():
    """TP 8, PP 16, DP 128 (arXiv 2407.21783) has a large bubble with two parts a stage, which is what our schedules
    have: context parallelism leaves fewer replicas, each with more micro-batches. With the 8 parts that 126 layers on
    16 stages allow, the published layout would be as fast as the first one (docs/plan.md)."""
    given = task("llama3-405b", 8192, 2048, "h100", 16384)
    candidate = Candidate(8, True, 1, 16, "interleaved", 1, 1, "selective")
    published, first = choice(given, candidate), search(given, 1).best[0]
    assert published.need <= given.memory
    assert first.candidate.context_parallel_size > 1
    assert float(published.step.items["pipeline bubble"]) > 1.3 * float(first.step.items["pipeline bubble"])
    assert 1.1 < float(published.step.seconds / first.step.seconds) < 1.35
    finer = replace(layout(as_run(given, candidate), 16384), virtual_stages=8)
    assert float(predict(finer, given.hardware).seconds) == pytest.approx(float(first.step.seconds), rel=0.05)


def test_steps_count_the_tokens_of_data_parallel_ranks_alone():
    """Field report 104: 4 sequences of 16 tokens, 3 steps, 2 tensor-parallel ranks: 192 tokens, not 384."""
    given = Task(small_task().shape, 16, 4, find("h100"), 2, 80e9)
    assert steps_for(given, 192) == 3
    sizes = columns(given, [Candidate(2, False, 1, 1, "1f1b", 1, 4, "none")])
    assert (sizes.data_parallel_size[0], sizes.micro_batches[0], sizes.tokens[0]) == (1, 1, 64)


def test_faults():
    with pytest.raises(PlanError, match=r"none of .* layouts on 8 x h100 fits into 79\.0 GiB; the smallest needs"):
        search(task("llama3-405b", 8192, 64, "h100", 8))
    with pytest.raises(PlanError, match="no layout of 1,024 ranks cuts 7 sequences of 8,191 tokens evenly"):
        search(task("llama3-8b", 8191, 7, "h100", 1024))
    with pytest.raises(PlanError, match="is not a layout that the rules allow"):
        rank(task("llama3-8b", 8192, 64, "h100", 64), Candidate(3, False, 1, 1, "1f1b", 1, 1, "none"))
    with pytest.raises(PlanError, match="global_batch_size = 0 is too small"):
        task("llama3-8b", 8192, 0, "h100", 8)

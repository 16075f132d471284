"""Why a run does not fit and what helps: every way is a valid run that fits, and no cheaper one was overlooked."""

from functools import partial
from itertools import combinations

import pytest

from megaxf.config import change, validate
from megaxf.plan.memory.advice import changes, fullest, need, reasons, ways
from megaxf.plan.memory.advice_page import REMEDIES, page, text, values
from megaxf.plan.memory.ledger import ledgers
from megaxf.plan.memory.price import HOST_LINK, HOST_UPDATE, UPDATE_BYTES, step_seconds
from megaxf.plan.memory.rows import GROUPS
from megaxf.plan.parameters import count
from megaxf.plan.throughput.hardware import find
from megaxf.plan.throughput.layout import layout
from megaxf.plan.throughput.step import predict

GIB = 2**30
SHAPE = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8}
MODEL = SHAPE | {"num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 4096}
RANKS = 8


def run_of(**sections):
    settings = {
        "run_folder": "x",
        "model": MODEL,
        "data": {"sources": {"t": {"folder": "x"}}, "sequence_length": 4096},
        "train": {"steps": 10, "global_batch_size": 64, "micro_batch_size": 4},
        "optimizer": {"learning_rate": 1e-3},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return validate(settings, "tests", None, RANKS)


def asked(run, limit, **more):
    """The ways of a run, timed for an H100."""
    seconds = partial(step_seconds, world_size=RANKS, hardware=find("h100"))
    return ways(run, RANKS, limit, lambda settings: change(run, settings, RANKS), seconds, **more)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"parallel": {"tensor_parallel_size": 2}},
        {"parallel": {"pipeline_parallel_size": 2}},
        {"engine": {"zero_stage": 3}},
    ],
    ids=["plain", "tensor", "pipeline", "zero 3"],
)
def test_each_way_is_a_valid_run_that_fits(sections, share):
    run = run_of(**sections)
    limit = share * need(ledgers(run, RANKS))
    found = asked(run, limit)
    assert [way.seconds for way in found] == sorted(way.seconds for way in found)
    for way in found:
        changed = change(run, way.settings, RANKS)
        assert need(ledgers(changed, RANKS)) == way.need <= limit
        assert way.seconds == step_seconds(changed, RANKS, find("h100"))
        for part in (one for alternatives in changes(run).values() for one in alternatives):
            if part.items() < way.settings.items() and (smaller := change(run, part, RANKS)):
                assert need(ledgers(smaller, RANKS)) > limit
    assert found or share < 0.3
    assert len({tuple(way.settings) for way in found}) == len(found)


def test_none_of_one_or_two_changes_is_cheaper():
    """Against all of them, one after another; a change beside one that suffices is not asked for."""
    run = run_of()
    limit = 0.6 * need(ledgers(run, RANKS))

    def fits(settings):
        changed = change(run, settings, RANKS)
        return bool(changed) and need(ledgers(changed, RANKS)) <= limit

    single = [settings for alternatives in changes(run).values() for settings in alternatives]
    enough = [settings for settings in single if fits(settings)]
    pairs = [a | b for a, b in combinations(single, 2) if all(a.get(key, b[key]) == b[key] for key in b)]
    pairs = [pair for pair in pairs if fits(pair) and not any(one.items() <= pair.items() for one in enough)]
    times = [step_seconds(change(run, settings, RANKS), RANKS, find("h100")) for settings in enough + pairs]
    assert enough and pairs
    assert min(times) == asked(run, limit)[0].seconds


def test_what_nothing_helps():
    assert asked(run_of(), 0.01 * GIB) == []
    advice = values(ledgers(run_of(), RANKS), [], 0.01 * GIB, 1.0)
    assert "more ranks, or a smaller model" in page(advice, "h100", 0, "loss")


def test_reasons_add_up_to_what_is_needed():
    found = ledgers(run_of(), RANKS)
    why = reasons(fullest(found))
    assert sum(reason.bytes for reason in why) == need(found)
    assert [reason.bytes for reason in why] == sorted((reason.bytes for reason in why), reverse=True)
    assert why[0].group == "activations"
    assert why[0].item == "gate, silu, up and product"
    assert set(REMEDIES) == set(GROUPS)


def test_changes_are_only_to_what_a_run_does_not_have():
    plain = changes(run_of())
    assert {"train.recompute": "selective"} in plain["recomputation"]
    assert plain["micro-batch"] == [{"train.micro_batch_size": 1}, {"train.micro_batch_size": 2}]
    assert "sequence parallelism" not in plain
    tight = run_of(
        train={"recompute": "full", "micro_batch_size": 1},
        parallel={"tensor_parallel_size": 8, "sequence_parallel": True},
        engine={"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    )
    assert set(changes(tight)) == {"context parallelism", "pipeline parallelism"}


def test_offloading_has_its_price():
    """2 bytes down and up for each parameter of the rank's share, its update on the host, weights for each pass."""
    run = run_of(engine={"zero_stage": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"})
    share = count(run.model).total / RANKS
    extra = step_seconds(run, RANKS, find("h100")) - float(predict(layout(run, RANKS), find("h100")).seconds)
    micro_batches = 64 // (4 * RANKS)
    assert extra == pytest.approx(4 * share * (1 + micro_batches) / HOST_LINK + UPDATE_BYTES * share / HOST_UPDATE)


def test_settings_as_they_are_written():
    assert text({"train.recompute": "full", "parallel.sequence_parallel": True}) == (
        "train.recompute=full parallel.sequence_parallel=true"
    )
    assert change(run_of(), {"parallel.tensor_parallel_size": 3}, RANKS) is None

"""A model without what its stage does not hold: names stay, and together the stages are the whole model."""

import pytest

from megaxf.parallel.apply import blank_model
from megaxf.parallel.pipeline import keep_stage, layers_of_parts, stages_of_parameters
from megaxf.plan.stages import split_layers
from tests.distributed.tiny import tiny_run

TABLE = "model.embed_tokens.weight"


def run_of(schedule, tied):
    return tiny_run(
        {"num_hidden_layers": 7, "tie_word_embeddings": tied},
        train={"micro_batch_size": 1},
        parallel={"pipeline_parallel_size": 3, "pipeline_schedule": schedule},
        engine={"zero_stage": 1},
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipev"])
def test_the_stages_are_the_model(schedule, tied):
    run = run_of(schedule, tied)
    whole, split = blank_model(run), split_layers(run)
    stages = stages_of_parameters(whole, split)
    assert list(stages) == [name for name, _ in whole.named_parameters()]
    ends = {TABLE: 0, "model.norm.weight": -1, "lm_head.weight": -1}
    last = 0 if schedule == "dualpipev" else 2
    for stage, parts in enumerate(split):
        model = blank_model(run)
        keep_stage(model, parts)
        held = {name for name, _ in model.named_parameters()}
        assert held == {name for name, owners in stages.items() if stage in owners}
        indices = [index for part in parts for index in part.layers]
        assert [layer.self_attn.layer_index for layer in model.layers] == indices
        assert [len(layers) for layers in layers_of_parts(model, parts)] == [len(part.layers) for part in parts]
        assert {name for name in held if not name.startswith("model.layers.")} == {
            name for name in ends if name in stages and stage in stages[name]
        }
    assert stages["model.norm.weight"] == (last,)
    assert stages[TABLE] == ((0, 2) if tied and last else (0,))
    assert all(len(owners) == 1 for name, owners in stages.items() if name != TABLE)

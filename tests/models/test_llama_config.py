import pytest
from pydantic import ValidationError

from megaxf.models.llama_config import Config


def problems(settings):
    """Our own sentences as they are, pydantic's after the key."""
    with pytest.raises(ValidationError) as caught:
        Config(**settings)
    sentences = []
    for fault in caught.value.errors():
        own = fault["type"] == "value_error"
        sentences += str(fault["ctx"]["error"]).split("\n") if own else [f"{fault['loc'][0]}: {fault['msg']}"]
    return sentences


def test_defaults_follow_from_the_sizes(tiny_settings):
    del tiny_settings["num_key_value_heads"], tiny_settings["head_dim"]
    config = Config(**tiny_settings)
    assert (config.num_key_value_heads, config.head_dim) == (4, 12)
    assert Config(**config.model_dump()) == config


def test_explicit_head_dim_need_not_divide(tiny_settings):
    assert Config(**tiny_settings | {"hidden_size": 50, "head_dim": 6}).head_dim == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_key_value_heads": 3, "num_attention_heads": 8},
            "model.num_key_value_heads = 3 does not divide model.num_attention_heads = 8; use one of 1, 2, 4, 8",
        ),
        ({"head_dim": 15}, "model.head_dim = 15 is odd; rotary embeddings turn pairs of dimensions, use an even one"),
        (
            {"sliding_window": 64},
            "model.sliding_window = 64 has no effect with model.max_position_embeddings = 64; "
            "remove it or make it shorter",
        ),
        ({"sliding_window": 0}, "sliding_window: Input should be greater than 0"),
        ({"vocab_size": "61"}, "vocab_size: Input should be a valid integer"),
        ({"num_attention_heads": 0}, "num_attention_heads: Input should be greater than 0"),
        ({"rope_theta": 1.0}, "rope_theta: Input should be greater than 1"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: Input should be a finite number"),
        ({"tie_word_embedding": True}, "tie_word_embedding: Extra inputs are not permitted"),
    ],
)
def test_each_fault_is_one_sentence(tiny_settings, changes, message):
    found = problems(tiny_settings | changes)
    assert len(found) == 1 and found[0].startswith(message)


def test_missing_head_dim_that_cannot_be_derived(tiny_settings):
    del tiny_settings["head_dim"]
    assert problems(tiny_settings | {"hidden_size": 50}) == [
        "model.head_dim is missing and model.num_attention_heads = 4 does not divide model.hidden_size = 50; "
        "give model.head_dim or another number of heads"
    ]


def test_all_faults_are_found_at_once(tiny_settings):
    assert len(problems(tiny_settings | {"num_key_value_heads": 3, "head_dim": 15, "sliding_window": 64})) == 3

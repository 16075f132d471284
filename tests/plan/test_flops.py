"""Model and hardware FLOPs: what they count, against hand counts and against PyTorch's counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from megaxf.models import gpt2, gpt_neox, matmul
from megaxf.models.initialize import initialize
from megaxf.models.registry import family
from megaxf.plan import flops
from megaxf.plan.conventions import convention_per_token
from megaxf.plan.parameters import count
from tests.plan.shapes import shape

LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)


@pytest.mark.parametrize(
    ("length", "pairs"), [(4, 10), (128, 8256), (1024, 524800), (2048, 2098176), (4096, 8390656), (8192, 33558528)]
)
def test_causal_pairs(length, pairs):
    assert flops.visible_pairs(length) == pairs


@pytest.mark.parametrize("window", [1, 2, 3, 7, 8, 20])
def test_window_pairs_are_those_that_the_mask_leaves(window):
    assert flops.visible_pairs(8, window) == sum(min(place + 1, window) for place in range(8))


def attention_part(config, length):
    return flops.per_sequence(config, length) - 6 * count(config).matmul * length


def test_attention_grows_with_the_square():
    """Causal: T(T+1)/2 pairs, so the ratio of 2T to T is 4 - 2/(T+1)."""
    ratio = attention_part(LLAMA3_8B, 8192) / attention_part(LLAMA3_8B, 4096)
    assert ratio == pytest.approx(4 - 2 / 4097)
    full = [convention_per_token(LLAMA3_8B, n) * n - 6 * count(LLAMA3_8B).total * n for n in (4096, 8192)]
    assert full[1] == 4 * full[0]


def test_fewer_key_heads_change_the_projections_alone():
    """8 -> 1: 2 matrices, 2 operations, 7 heads less per token and layer in the forward pass; training is 3 times."""
    many, one = shape(100, 512, 3, 96, 8, 8), shape(100, 512, 3, 96, 8, 1)
    drop = flops.per_token(many, 64) - flops.per_token(one, 64)
    assert drop == 3 * 3 * (2 * 2 * 512 * 64 * 7)
    assert attention_part(many, 64) == attention_part(one, 64)


def test_window_caps_the_attention():
    mistral = shape(32000, 4096, 32, 14336, 32, 8, sliding_window=4096)
    free = shape(32000, 4096, 32, 14336, 32, 8)
    assert flops.per_token(mistral, 4096) == flops.per_token(free, 4096)
    assert flops.per_token(mistral, 32768) < flops.per_token(free, 32768)
    assert attention_part(mistral, 32768) == 12 * 32 * 4096 * (4096 * 4097 // 2 + (32768 - 4096) * 4096)


def test_tied_head_is_counted():
    tied, free = (shape(1000, 64, 2, 96, 4, 4, tie_word_embeddings=tied) for tied in (True, False))
    assert flops.per_token(tied, 16) == flops.per_token(free, 16)


def test_parts_are_the_whole():
    parts = flops.parts_per_sequence(LLAMA3_8B, 8192)
    assert sum(parts.values()) == flops.per_sequence(LLAMA3_8B, 8192)
    assert parts["head"] == 6 * 128256 * 4096 * 8192
    assert parts["MLP"] == 32 * 6 * 3 * 4096 * 14336 * 8192
    assert parts["attention, scores"] == attention_part(LLAMA3_8B, 8192)


GPT = {"vocab_size": 50, "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3}
GPT |= {"num_attention_heads": 6, "max_position_embeddings": 64}
SHAPES = {
    "llama": shape(50, 96, 3, 200, 6, 2, head_dim=24),
    "gpt2": gpt2.Config(**GPT),
    "neox": gpt_neox.Config(**GPT, rotary_pct=0.5),
    "neox, one after the other": gpt_neox.Config(**GPT, rotary_pct=0.5, use_parallel_residual=False),
}


def measured(config, recompute, every, dropout=0.0):
    """(products of matrices, scores and values) of a training pass, by PyTorch's counter; scores are a full square."""
    options = {"attention_backend": "reference", "recompute": recompute, "recompute_every": every, "dropout": dropout}
    model = family(config.family).Model(config, **options)
    initialize(model, 1)
    tokens = torch.arange(2 * 40).view(2, 40) % 50
    with FlopCounterMode(display=False) as counter:
        (model(tokens, samples=torch.arange(2)) @ model.head_weight().T).sum().backward()
    counts = {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}
    return counts["aten.mm"] + counts.get("aten.addmm", 0), counts["aten.bmm"]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("recompute", "every"), [("none", 1), ("selective", 1), ("full", 1), ("full", 2), ("full", 5)])
def test_hardware_flops_are_those_that_pytorch_counts(name, recompute, every, dropout, monkeypatch):
    # With its own products; recomputation stops one later with those that we have oneDNN make.
    monkeypatch.setattr(matmul, "SLOW_MKL", False)
    matrices, scores = measured(SHAPES[name], recompute, every, dropout)
    square, seen = 40 * 40, flops.visible_pairs(40)
    counted = flops.hardware_per_sequence(SHAPES[name], 40, recompute, every, dropout=dropout > 0, fused=False)
    assert scores % square == 0
    assert matrices + scores // square * seen == 2 * counted


def test_a_fused_backward_pass_makes_the_scores_again():
    """One of the two products of the forward pass, in every layer, however much is recomputed."""
    scores = 2 * 32 * 32 * 128 * flops.visible_pairs(8192)
    for recompute in ("none", "core", "full"):
        fused, plain = (flops.hardware_per_sequence(LLAMA3_8B, 8192, recompute, fused=fused) for fused in (True, False))
        assert fused - plain == scores


def test_unknown_recomputation():
    with pytest.raises(ValueError, match="recompute = 'most' is not known; use one of none, selective, core, full"):
        flops.hardware_per_sequence(LLAMA3_8B, 8192, "most")

import pytest

from megaxf.plan import flops
from megaxf.plan.parameters import count
from tests.plan.shapes import shape

LLAMA_7B = shape(32000, 4096, 32, 11008, 32, 32)
LLAMA2_70B = shape(32000, 8192, 80, 28672, 64, 8)
LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)
LLAMA3_405B = shape(128256, 16384, 126, 53248, 128, 8)


@pytest.mark.parametrize(
    ("config", "length", "matrices", "exact", "convention"),
    [
        (LLAMA_7B, 2048, 39642464256, 41253863424, 43651719168),
        (LLAMA2_70B, 4096, 412279111680, 428389171200, 446072143872),
        (LLAMA3_8B, 8192, 45027950592, 51471187968, 61066469376),
        (LLAMA3_405B, 8192, 2422487384064, 2523968372736, 2638057537536),
    ],
)
def test_values(config, length, matrices, exact, convention):
    assert 6 * count(config).matmul == matrices
    assert flops.per_token(config, length) == exact
    assert flops.convention_per_token(config, length) == convention


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
    full = [flops.convention_per_token(LLAMA3_8B, n) * n - 6 * count(LLAMA3_8B).total * n for n in (4096, 8192)]
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

import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from megaxf.models.rope import Rope, rotate
from megaxf.models.rope_scaling import RopeScaling


def scaling(**settings):
    return TypeAdapter(RopeScaling).validate_python(settings)


def turned(x, position, theta=10000.0):
    """One head turned to a position."""
    cos, sin = Rope(len(x), theta, None).tables(torch.tensor([[position]]), torch.float64)
    return rotate(torch.tensor(x, dtype=torch.float64)[None, None, None], cos, sin)[0, 0, 0]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, [1, 2, 3, 4]),
        (1, [-1.98411065, 1.95990067, 2.46237790, 4.01979967]),
        (3, [-1.41335252, 1.87911807, -2.82885748, 4.05819114]),
    ],
)
def test_half_split_values(position, expected):
    assert turned([1.0, 2, 3, 4], position).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("distance", "score"),
    [(0, 64), (1, 61.833663), (2, 56.607724), (10, 42.103258), (100, 35.749338), (1000, 17.851933)],
)
def test_score_of_ones_at_a_distance(distance, score):
    ones = [1.0] * 64
    for start in (0, 5):
        product = turned(ones, start + distance) @ turned(ones, start)
        assert product.item() == pytest.approx(score, abs=2e-3)


def test_score_depends_on_the_distance_alone_and_norms_stay():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 16, dtype=torch.float64, generator=generator).tolist()
    scores = [(turned(q, 3 + offset) @ turned(k, offset)).item() for offset in (0, 2, 100, 1000)]
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-3)
    assert turned(q, 77).norm().item() == pytest.approx(math.hypot(*q), rel=1e-6)


@pytest.mark.parametrize(
    ("theta", "second", "last"), [(1e4, 0.86596432, 1.15478198e-4), (5e5, 0.81461723, 2.45514079e-6)]
)
def test_frequencies(theta, second, last):
    frequencies, factor = Rope(128, theta, None).frequencies()
    assert frequencies[0] == 1
    assert frequencies[1].item() == pytest.approx(second, rel=1e-6)
    assert frequencies[-1].item() == pytest.approx(last, rel=1e-6)
    assert factor == 1


def test_linear_divides_positions():
    plain, _ = Rope(16, 1e4, None).frequencies()
    stretched, _ = Rope(16, 1e4, scaling(type="linear", factor=4.0)).frequencies()
    torch.testing.assert_close(stretched, plain / 4)


def test_ntk_changes_the_base():
    stretched, _ = Rope(128, 1e4, scaling(type="ntk", factor=4.0)).frequencies()
    expected, _ = Rope(128, 40889.94243, None).frequencies()
    plain, _ = Rope(128, 1e4, None).frequencies()
    torch.testing.assert_close(stretched, expected, rtol=1e-6, atol=0)
    assert stretched[0] == plain[0]
    assert (plain[-1] / stretched[-1]).item() == pytest.approx(4, rel=1e-5)


def test_llama3_has_three_regions():
    settings = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    stretched, _ = Rope(
        128, 5e5, scaling(type="llama3", original_max_position_embeddings=8192, **settings)
    ).frequencies()
    plain, _ = Rope(128, 5e5, None).frequencies()
    waves = 2 * math.pi / plain
    kept, divided = waves < 8192 / 4, waves > 8192 / 1
    blended = ~kept & ~divided
    assert min(kept.sum(), divided.sum(), blended.sum()) > 0
    torch.testing.assert_close(stretched[kept], plain[kept])
    torch.testing.assert_close(stretched[divided], plain[divided] / 8)
    assert ((stretched < plain) & (stretched > plain / 8))[blended].all()


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    yarn = scaling(type="yarn", factor=4.0, original_max_position_embeddings=2048)
    stretched, attention_factor = Rope(64, 1e5, yarn).frequencies()
    plain, _ = Rope(64, 1e5, None).frequencies()
    torch.testing.assert_close(stretched[:6], plain[:6])
    torch.testing.assert_close(stretched[-12:], plain[-12:] / 4)
    assert attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    cos, _ = Rope(64, 1e5, yarn).tables(torch.tensor([[0]]), torch.float32)
    assert cos[0, 0, 0].tolist() == pytest.approx([attention_factor] * 32)


def test_angles_are_fp32_when_the_model_is_bf16(tiny):
    """In bf16 position 257 would round to 256."""
    model = tiny(max_position_embeddings=4096).to(torch.bfloat16)
    positions = torch.tensor([[256, 257, 4095]])
    cos, _ = model.rope.tables(positions, torch.float32)
    assert cos[0, :, 0, 0].tolist() == pytest.approx([math.cos(256), math.cos(257), math.cos(4095)], abs=1e-6)
    assert not list(model.buffers())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "dynamic", "factor": 2.0}, "linear.*ntk.*yarn.*llama3"),
        ({"type": "linear", "factor": 0.5}, "greater than or equal to 1"),
        ({"type": "linear", "factor": 2.0, "beta_fast": 2.0}, "not permitted"),
        ({"type": "yarn", "factor": 2.0}, "original_max_position_embeddings"),
        (
            {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 1.0},
            "beta_fast = 1.0 must be above model.rope_scaling.beta_slow = 1.0",
        ),
        (
            {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "mscale": 1.0},
            "give both or neither",
        ),
        (
            {
                "type": "llama3",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
            },
            "high_freq_factor = 1.0 must be above model.rope_scaling.low_freq_factor = 4.0",
        ),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValidationError, match=message):
        scaling(**settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_and_inference_turn_alike(dtype):
    """One by halves, the other at once: the same bits."""
    x, positions = torch.randn(2, 5, 3, 16).to(dtype), torch.arange(5)[None] * 97
    tables = Rope(16, 1e4, None).tables(positions, dtype)
    with torch.no_grad():
        whole = Rope(16, 1e4, None).tables(positions, dtype)
    assert (tables[0].shape[-1], whole[0].shape[-1]) == (8, 16)
    assert torch.equal(rotate(x, *tables), rotate(x, *whole))

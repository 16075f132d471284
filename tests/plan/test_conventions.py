"""Published counts of FLOPs and times to train, to the digits given."""

import pytest

from megaxf.plan import conventions, flops
from megaxf.plan.conventions import CONVENTIONS, days, mfu, palm
from megaxf.plan.parameters import count
from tests.plan.digits import Printed
from tests.plan.shapes import shape

LLAMA_7B = shape(32000, 4096, 32, 11008, 32, 32), 2048
LLAMA2_70B = shape(32000, 8192, 80, 28672, 64, 8), 4096
LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8), 8192
LLAMA3_405B = shape(128256, 16384, 126, 53248, 128, 8), 8192
MODELS = (LLAMA_7B, LLAMA2_70B, LLAMA3_8B, LLAMA3_405B)

GPT3 = shape(51200, 12288, 96, 32768, 96, 96), 2048
"""An MLP of two matrices of 4 h is as large as one of three of 8/3 h."""

PER_TOKEN = {
    "model": (41253863424, 428389171200, 51471187968, 2523968372736),
    "convention": (43651719168, 446072143872, 61066469376, 2638057537536),
    "torchtitan": (42865287168, 444499279872, 57914449920, 2625449459712),
    "full square": (42863689728, 444491366400, 57912852480, 2625424588800),
    "megatron": (41253076992, 428385239040, 51470401536, 2523955986432),
}


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_flops_per_token(convention):
    assert tuple(convention.per_token(*model) for model in MODELS) == PER_TOKEN[convention.name]


def test_what_they_are_made_of():
    counts = [count(config) for config, _ in MODELS]
    assert [6 * each.total for each in counts] == [40430493696, 413859889152, 48181567488, 2435120332800]
    assert [6 * each.matmul for each in counts] == [39642464256, 412279111680, 45027950592, 2422487384064]
    full = [12 * config.num_hidden_layers * config.num_attention_heads * 128 * length for config, length in MODELS]
    assert full == [3221225472, 32212254720, 12884901888, 202937204736]
    causal = [flops.parts_per_sequence(*model)["attention, scores"] // model[1] for model in MODELS]
    assert causal == [1611399168, 16110059520, 6443237376, 101480988672]
    shares = [100 * part / conventions.full_per_token(*model) for part, model in zip(full, MODELS, strict=True)]
    assert shares == [Printed("7.52"), Printed("7.25"), Printed("22.25"), Printed("7.73")]


def test_torchtitan_keeps_the_norms():
    for config, length in MODELS:
        norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
        more = conventions.torchtitan_per_token(config, length) - conventions.full_per_token(config, length)
        assert more == 6 * norms


def test_a_tied_table_stays_with_torchtitan():
    tied = shape(128256, 2048, 16, 8192, 32, 8, head_dim=64, tie_word_embeddings=True)
    assert conventions.torchtitan_per_token(tied, 8192) == conventions.convention_per_token(tied, 8192)


def test_nanogpt_and_palm():
    """nanoGPT's 124M without positions, at 1,024 tokens; PaLM 540B (arXiv 2204.02311) on 6,144 TPUs."""
    per_token = palm(123653376, 12 * 12 * 64, 1024)
    assert (per_token, 1024 * per_token) == (855166464, 875690459136)
    large = palm(540.35e9, 118 * 48 * 256, 2048)
    assert large == pytest.approx(3.277735e12, rel=2e-7)
    assert 100 * mfu(large, 238.3e3, 6144, 275e12) == Printed("46.23")


def test_gpt3():
    """72 L h^2 (1 + s/6h + V/12hL) (arXiv 2205.05198); with a whole forward pass again, 96 L h^2 (1 + s/6h + V/16Lh)
    (arXiv 2104.04473); with half of the scores."""
    config, length = GPT3
    assert conventions.full_per_token(config, length) == Printed("1.076443e12")
    assert conventions.megatron_per_token(config, length) == Printed("1.061947e12")
    layers = conventions.full_per_token(config, length) - 6 * 51200 * 12288
    assert conventions.full_per_token(config, length) + layers / 3 == Printed("1.433999e12")


def test_one_run_two_mfus():
    """torchtitan's 8B on 8 H100, eager and compiled: 5,762 and 6,667 tokens/s of each GPU."""
    full, causal = (row(*LLAMA3_8B) for row in (conventions.full_per_token, flops.per_token))
    for speed, shares in ((5762, ("33.7", "30.0")), (6667, ("39.0", "34.7"))):
        found = tuple(100 * mfu(count, 8 * speed, 8, 989e12) for count in (full, causal))
        assert found == tuple(map(Printed, shares))


@pytest.mark.parametrize(
    ("total", "devices", "speed", "expected"),
    [
        (8 * 300e9 * 175e9, 1024, 140e12, "33.9"),  # GPT-3 on A100, arXiv 2104.04473: with recomputation; "34 days"
        (8 * 450e9 * 1.008e12, 3072, 163e12, "83.9"),  # its trillion parameters; "84 days"
        (1.4e12, 2048, 380, "20.8"),  # tokens of LLaMA-65B, arXiv 2302.13971; "about 21 days"
        (5.88e23, 1024, 0.4 * 989.4e12, "16.79"),  # Chinchilla's on H100 at 40 %
        (5.88e23, 1 / 24, 0.4 * 989.4e12, "412708"),  # GPU-hours
        (1e21, 1 / 24, 0.4 * 989.4e12, "702"),
        (1e22, 1 / 24, 0.4 * 989.4e12, "7019"),
    ],
)
def test_time_to_train(total, devices, speed, expected):
    assert days(total, devices, speed) == Printed(expected)


def test_selective_recomputation():
    """s/6h of the FLOPs by Korthikanti et al. (arXiv 2205.05198), who count the core's three passes; one is spent."""
    for (hidden, layers, heads), published in (
        ((12288, 96, 96), "2.8"),
        ((20480, 105, 128), "1.7"),
        ((6144, 48, 64), "5.6"),
        ((25600, 128, 160), "1.3"),
    ):
        config = shape(51200, hidden, layers, hidden * 8 // 3, heads, heads, head_dim=hidden // heads)
        core = flops.hardware_per_sequence(config, 2048, "core", fused=False) - flops.per_sequence(config, 2048)
        square = core * 2048**2 / flops.visible_pairs(2048)
        assert 100 * 3 * square / (72 * layers * hidden**2 * 2048) == Printed(published)

import random
from pathlib import Path

import pytest
import torch

from megaxf.config import load_model
from megaxf.models.llama_config import Config
from megaxf.models.registry import config_type, family
from megaxf.plan.parameters import count
from tests.plan.shapes import shape

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"

PUBLISHED = {
    "1b": 1_100_048_384,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "gpt2": 124_439_808,
    "pythia-160m": 162_322_944,
    "pythia-1b": 1_011_781_632,
}


def shipped(name):
    return load_model(str(MODELS / f"{name}.yaml"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_shapes_have_the_published_counts(name):
    assert count(shipped(name)).total == PUBLISHED[name]


def test_comments_of_shipped_shapes_are_true():
    for path in MODELS.glob("*.yaml"):
        assert path.read_text().startswith(f"# {count(shipped(path.stem)).total:,} parameters"), path


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (shape(32000, 6656, 60, 17920, 52, 52), 32_528_943_616),
        (shape(32000, 8192, 80, 22016, 64, 64), 65_285_660_672),
        (shape(128256, 8192, 80, 28672, 64, 8), 70_553_706_496),
        (shape(128256, 2048, 16, 8192, 32, 8, head_dim=64, tie_word_embeddings=True), 1_235_814_400),
        (shape(128256, 3072, 28, 8192, 24, 8, head_dim=128, tie_word_embeddings=True), 3_212_749_824),
        (shape(49152, 576, 30, 1536, 9, 3, tie_word_embeddings=True), 134_515_008),
        (shape(49152, 2048, 24, 8192, 32, 32, tie_word_embeddings=True), 1_711_376_384),
        (shape(152064, 3584, 28, 18944, 28, 4, attention_bias=True), 7_615_616_512),
    ],
)
def test_other_published_counts(config, total):
    assert count(config).total == total


def test_what_each_count_holds():
    llama, llama3 = count(shipped("llama2-7b")), count(shipped("llama3-8b"))
    assert (llama.embedding, llama.non_embedding) == (262_144_000, 6_476_271_616)
    assert llama3.non_embedding == 6_979_588_096
    assert 6 * llama.matmul == 39_642_464_256
    assert llama.matmul == 6_607_343_616 - (2 * 32 + 1) * 4096


def test_tied_head_is_stored_once_and_multiplied_once():
    tied, free = (count(shape(1000, 64, 2, 96, 4, 4, tie_word_embeddings=tied)) for tied in (True, False))
    assert free.total - tied.total == free.embedding - tied.embedding == 64_000
    assert tied.matmul == free.matmul
    assert tied.non_embedding == free.non_embedding


def llama(draw):
    kv_heads = draw.choice([1, 2, 3])
    return Config(
        vocab_size=draw.randint(10, 500),
        hidden_size=draw.randint(8, 100),
        intermediate_size=draw.randint(8, 300),
        num_hidden_layers=draw.randint(1, 4),
        num_attention_heads=kv_heads * draw.choice([1, 2, 5]),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw.randint(1, 20),
        max_position_embeddings=64,
        tie_word_embeddings=draw.random() < 0.5,
        attention_bias=draw.random() < 0.5,
        qk_norm=draw.random() < 0.5,
    )


def gpt(draw, name, **more):
    heads = draw.randint(1, 6)
    return config_type(name)(
        vocab_size=draw.randint(10, 500),
        hidden_size=heads * 2 * draw.randint(1, 20),
        intermediate_size=draw.randint(8, 300),
        num_hidden_layers=draw.randint(1, 4),
        num_attention_heads=heads,
        max_position_embeddings=draw.randint(10, 99),
        tie_word_embeddings=draw.random() < 0.5,
        **more,
    )


def neox(draw):
    return gpt(draw, "gpt_neox", rotary_pct=1.0, attention_bias=draw.random() < 0.5)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("make", [llama, lambda draw: gpt(draw, "gpt2"), neox], ids=["llama", "gpt2", "neox"])
def test_equals_the_sizes_of_the_built_model(make, seed):
    config = make(random.Random(seed))
    with torch.device("meta"):
        model = family(config.family).Model(config)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    counted = count(config)
    ends = ("embed", "lm_head", "wte", "wpe")
    outside = sum(size for name, size in sizes.items() if any(end in name for end in ends))
    matrices = sum(p.numel() for p in model.layers.parameters() if p.dim() == 2)
    assert counted == (
        sum(sizes.values()),
        outside,
        sum(sizes.values()) - outside,
        matrices + model.head_weight().numel(),
    )

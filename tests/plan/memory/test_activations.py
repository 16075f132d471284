"""The ledger's activations: published values, and what our layers really keep."""

import pytest
import torch

from megaxf.models import gpt2, gpt_neox
from megaxf.models.initialize import initialize
from megaxf.models.llama import Model
from megaxf.models.registry import family
from megaxf.plan.memory.activations import korthikanti_bytes, layer_terms, published_bytes_per_token
from tests.plan.digits import Printed
from tests.plan.memory.saved import job, saved_by_layer
from tests.plan.shapes import shape

GIB = 2**30

LLAMA_7B = shape(32000, 4096, 32, 11008, 32, 32)
LLAMA2_70B = shape(32000, 8192, 80, 28672, 64, 8)
LLAMA3_8B = shape(128256, 4096, 32, 14336, 32, 8)
LLAMA3_405B = shape(128256, 16384, 126, 53248, 128, 8)


@pytest.mark.parametrize(
    ("config", "seq", "per_token", "layer", "layers", "full"),
    [
        (LLAMA_7B, 2048, 153_728, 0.2932, 9.383, 0.500),
        (LLAMA2_70B, 4096, 332_032, 1.2666, 101.33, 5.000),
        (LLAMA3_8B, 8192, 168_064, 1.2822, 41.03, 2.000),
        (LLAMA3_405B, 8192, 627_200, 4.7852, 602.9, 31.500),
    ],
)
def test_published_bytes_of_llama_blocks(config, seq, per_token, layer, layers, full):
    """Counted with saved-tensor hooks on blocks with fused norms; GiB of one sequence."""
    bytes_per_token = published_bytes_per_token(config)
    assert bytes_per_token == per_token
    assert bytes_per_token * seq / GIB == pytest.approx(layer, rel=2e-4)
    assert bytes_per_token * seq * config.num_hidden_layers / GIB == pytest.approx(layers, rel=2e-4)
    recomputed = layer_terms(job(config, 1, seq, recompute="full"), "full")
    assert sum(recomputed.values()) * config.num_hidden_layers / GIB == full


@pytest.mark.parametrize(
    ("kv_heads", "ffn", "seq", "batch", "backend", "published"),
    [
        (8, 1408, 256, 2, "sdpa", 12_079_104),
        (2, 1792, 256, 2, "sdpa", 12_865_536),
        (8, 1408, 1024, 1, "sdpa", 24_158_208),
    ],
)
def test_our_layer_keeps_what_a_hand_written_norm_keeps(kv_heads, ffn, seq, batch, backend, published):
    """Counted on another implementation with the same norms."""
    config = shape(64, 512, 1, ffn, 8, kv_heads)
    assert sum(layer_terms(job(config, batch, seq), "none").values()) == published
    fused = published_bytes_per_token(config) * seq * batch
    assert published == fused + (8 * 512 + 8) * seq * batch


@pytest.mark.parametrize(
    ("name", "sizes", "row"),
    [
        ("22B", (2048, 4, 6144, 64, 48), (59.250, 39.563, 29.250, 9.5625, 4.500)),
        ("175B", (2048, 1, 12288, 96, 96), (51.750, 32.0625, 29.250, 9.5625, 4.500)),
        ("530B", (2048, 1, 20480, 128, 105), (86.133, 50.244, 53.320, 17.432, 8.203)),
        ("1T", (2048, 1, 25600, 160, 128), (131.250, 76.5625, 81.250, 26.5625, 12.500)),
    ],
)
def test_activations_of_gpt3_blocks(name, sizes, row):
    """Korthikanti et al., arXiv 2205.05198, equations 2 to 6 at tensor parallelism 8; GiB of all layers."""
    seq, batch, hidden, heads, layers = sizes
    config = shape(51200, hidden, layers, 4 * hidden, heads, heads)
    cells = [("none", False), ("none", True), ("selective", False), ("selective", True), ("full", False)]
    found = [
        korthikanti_bytes(config, seq * batch, seq, ranks=8, sequence=sequence, recompute=recompute) * layers / GIB
        for recompute, sequence in cells
    ]
    assert found == pytest.approx(row, abs=6e-4)


@pytest.mark.parametrize(
    ("hidden", "heads", "saved"),
    [(12288, 96, "70.2"), (20480, 128, "65.3"), (6144, 64, "75.8"), (25600, 160, "65.3")],
)
def test_what_selective_recomputation_saves(hidden, heads, saved):
    """Percent of a GPT-3 block at 2,048 tokens: arXiv 2205.05198, section 5."""
    config = shape(51200, hidden, 1, 4 * hidden, heads, heads)
    whole, left = (korthikanti_bytes(config, 2048, 2048, recompute=mode) for mode in ("none", "selective"))
    assert 100 * (1 - left / whole) == Printed(saved)


MHA = {"hidden": 64, "ffn": 176, "heads": 4, "kv_heads": 4}
GQA = {"hidden": 96, "ffn": 200, "heads": 6, "kv_heads": 2, "head_dim": 24}
NORMED = {"hidden": 40, "ffn": 72, "heads": 3, "kv_heads": 1, "head_dim": 16, "qk_norm": True, "attention_bias": True}
SHAPES = {"mha": MHA, "gqa": GQA, "norms of q and k": NORMED}


GPT = {"vocab_size": 50, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT |= {"max_position_embeddings": 64}
FAMILIES = {
    "gpt2": gpt2.Config(**GPT),
    "neox": gpt_neox.Config(**GPT, rotary_pct=0.4),
    "neox, one after the other": gpt_neox.Config(**GPT, rotary_pct=0.4, use_parallel_residual=False),
}


def build(sizes, recompute="none", backend="sdpa", dropout=0.0, dtype=torch.bfloat16, window=None):
    sizes = dict(sizes)
    ordered = [sizes.pop(key) for key in ("hidden", "ffn", "heads", "kv_heads")]
    config = shape(50, ordered[0], 2, *ordered[1:], **sizes, sliding_window=window)
    model = Model(config, attention_backend=backend, recompute=recompute, dropout=dropout, dtype=dtype)
    initialize(model, 1)
    return config, model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
def test_a_layer_keeps_the_counted_bytes(sizes, recompute, backend, dtype):
    config, model = build(sizes, recompute, backend, dtype=dtype)
    kept = saved_by_layer(model, torch.arange(3 * 40).view(3, 40) % 50, dtype)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    planned = job(config, 3, 40, precision=precision, attention_backend=backend)
    assert kept == sum(layer_terms(planned, recompute).values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", ["sdpa", "reference"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", FAMILIES)
def test_layers_of_other_families(name, recompute, backend, dtype):
    config = FAMILIES[name]
    options = {"attention_backend": backend, "dropout": 0.1}
    model = family(config.family).Model(config, recompute=recompute, dtype=dtype, **options)
    initialize(model, 1)
    kept = saved_by_layer(model, torch.arange(3 * 40).view(3, 40) % 50, dtype)
    planned = job(config, 3, 40, precision="bf16" if dtype == torch.bfloat16 else "fp32", **options)
    assert kept == sum(layer_terms(planned, recompute).values())


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_masks_and_dropout_are_counted(backend):
    tokens = torch.arange(3 * 40).view(3, 40) % 50
    config, model = build(GQA, backend=backend, dropout=0.1, window=16)
    kept = saved_by_layer(model, tokens, torch.bfloat16)
    assert kept == sum(layer_terms(job(config, 3, 40, attention_backend=backend, dropout=0.1), "none").values())
    config, model = build(GQA, backend=backend)
    kept = saved_by_layer(model, tokens, torch.bfloat16, document_ids=tokens // 7)
    isolated = job(config, 3, 40, attention_backend=backend, isolate_documents=True)
    assert kept == sum(layer_terms(isolated, "none").values())


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_compiled_layer_of_another_family(name, recompute):
    torch._dynamo.reset()
    config = FAMILIES[name]
    model = family(config.family).Model(config, recompute=recompute, dtype=torch.bfloat16)
    initialize(model, 1)
    model.layers[0].compile()
    kept = saved_by_layer(model, torch.arange(2 * 32).view(2, 32) % 50, torch.bfloat16)
    assert kept == sum(layer_terms(job(config, 2, 32, compile=True), recompute).values())


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_a_compiled_layer_keeps_the_counted_bytes(recompute):
    torch._dynamo.reset()
    config, model = build(NORMED, recompute)
    model.layers[0].compile()
    kept = saved_by_layer(model, torch.arange(2 * 32).view(2, 32) % 50, torch.bfloat16)
    assert kept == sum(layer_terms(job(config, 2, 32, compile=True), recompute).values())

"""Shapes of published models, and what sizes have in common: the neighbours of a proposal.

Parameters are those of the published weights; of models without any (GPT-3, Gopher, Chinchilla, PaLM, MT-NLG) they
follow from the paper's shape.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

SPREAD = log(3)
"""How far, in ln N, a published shape speaks for others: standard deviation of a Gaussian weight."""


class Published(NamedTuple):
    """One model; sizes under the names of a model's Config."""

    name: str
    source: str
    """arXiv id of the paper, or its authors."""
    parameters: int
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tied: bool = False
    """Whether the embedding table is the output matrix."""
    mlp_matrices: int = 3
    """3: SwiGLU; 2: a plain MLP."""

    @property
    def aspect(self) -> float:
        """Hidden size over layers."""
        return self.hidden_size / self.num_hidden_layers


# name, source, parameters, vocab, hidden, layers, MLP, heads, kv heads, head_dim
MODELS = (
    Published("SmolLM2-135M", "2502.02737", 134_515_008, 49152, 576, 30, 1536, 9, 3, 64, True),
    Published("SmolLM2-360M", "2502.02737", 361_821_120, 49152, 960, 32, 2560, 15, 5, 64, True),
    Published("SmolLM2-1.7B", "2502.02737", 1_711_376_384, 49152, 2048, 24, 8192, 32, 32, 64, True),
    Published("GPT-2 (nanoGPT 124M)", "Radford et al. 2019", 124_439_808, 50257, 768, 12, 3072, 12, 12, 64, True, 2),
    Published("GPT-2 medium", "Radford et al. 2019", 354_823_168, 50257, 1024, 24, 4096, 16, 16, 64, True, 2),
    Published("GPT-2 large", "Radford et al. 2019", 774_030_080, 50257, 1280, 36, 5120, 20, 20, 64, True, 2),
    Published("GPT-2 XL", "Radford et al. 2019", 1_557_611_200, 50257, 1600, 48, 6400, 25, 25, 64, True, 2),
    Published("GPT-3 175B", "2005.14165", 174_604_259_328, 50257, 12288, 96, 49152, 96, 96, 128, True, 2),
    Published("Pythia-70M", "2304.01373", 70_426_624, 50304, 512, 6, 2048, 8, 8, 64, False, 2),
    Published("Pythia-160M", "2304.01373", 162_322_944, 50304, 768, 12, 3072, 12, 12, 64, False, 2),
    Published("Pythia-410M", "2304.01373", 405_334_016, 50304, 1024, 24, 4096, 16, 16, 64, False, 2),
    Published("Pythia-1B", "2304.01373", 1_011_781_632, 50304, 2048, 16, 8192, 8, 8, 256, False, 2),
    Published("Pythia-1.4B", "2304.01373", 1_414_647_808, 50304, 2048, 24, 8192, 16, 16, 128, False, 2),
    Published("Pythia-2.8B", "2304.01373", 2_775_208_960, 50304, 2560, 32, 10240, 32, 32, 80, False, 2),
    Published("Pythia-6.9B", "2304.01373", 6_857_302_016, 50432, 4096, 32, 16384, 32, 32, 128, False, 2),
    Published("Pythia-12B", "2304.01373", 11_846_072_320, 50688, 5120, 36, 20480, 40, 40, 128, False, 2),
    Published("GPT-NeoX-20B", "2204.06745", 20_554_567_680, 50432, 6144, 44, 24576, 64, 64, 96, False, 2),
    Published("Chinchilla 70B", "2203.15556", 70_055_362_560, 32000, 8192, 80, 32768, 64, 64, 128, True, 2),
    Published("Gopher 280B", "2112.11446", 279_697_162_240, 32000, 16384, 80, 65536, 128, 128, 128, True, 2),
    Published("PaLM 540B", "2204.02311", 540_354_281_472, 256000, 18432, 118, 73728, 48, 1, 256, True),
    Published("MT-NLG 530B", "2201.11990", 529_600_819_200, 51200, 20480, 105, 81920, 128, 128, 160, True, 2),
    Published("TinyLlama-1.1B", "2401.02385", 1_100_048_384, 32000, 2048, 22, 5632, 32, 4, 64),
    Published("LLaMA-7B, Llama-2-7B", "2302.13971", 6_738_415_616, 32000, 4096, 32, 11008, 32, 32, 128),
    Published("LLaMA-13B, Llama-2-13B", "2302.13971", 13_015_864_320, 32000, 5120, 40, 13824, 40, 40, 128),
    Published("LLaMA-33B", "2302.13971", 32_528_943_616, 32000, 6656, 60, 17920, 52, 52, 128),
    Published("LLaMA-65B", "2302.13971", 65_285_660_672, 32000, 8192, 80, 22016, 64, 64, 128),
    Published("Llama-2-70B", "2307.09288", 68_976_648_192, 32000, 8192, 80, 28672, 64, 8, 128),
    Published("Llama-3.2-1B", "2407.21783", 1_235_814_400, 128256, 2048, 16, 8192, 32, 8, 64, True),
    Published("Llama-3.2-3B", "2407.21783", 3_212_749_824, 128256, 3072, 28, 8192, 24, 8, 128, True),
    Published("Llama-3-8B", "2407.21783", 8_030_261_248, 128256, 4096, 32, 14336, 32, 8, 128),
    Published("Llama-3-70B", "2407.21783", 70_553_706_496, 128256, 8192, 80, 28672, 64, 8, 128),
    Published("Llama-3.1-405B", "2407.21783", 405_853_388_800, 128256, 16384, 126, 53248, 128, 8, 128),
    Published("Mistral-7B", "2310.06825", 7_241_732_096, 32000, 4096, 32, 14336, 32, 8, 128),
    Published("OLMo-1B", "2402.00838", 1_176_764_416, 50304, 2048, 16, 8192, 16, 16, 128, True),
    Published("OLMo-7B", "2402.00838", 6_888_095_744, 50304, 4096, 32, 11008, 32, 32, 128),
    Published("DeepSeek-67B", "2401.02954", 67_425_001_472, 102400, 8192, 95, 22016, 64, 8, 128),
    Published("Qwen2.5-0.5B", "2412.15115", 494_032_768, 151936, 896, 24, 4864, 14, 2, 64, True),
    Published("Qwen2.5-1.5B", "2412.15115", 1_543_714_304, 151936, 1536, 28, 8960, 12, 2, 128, True),
    Published("Qwen2.5-3B", "2412.15115", 3_085_938_688, 151936, 2048, 36, 11008, 16, 2, 128, True),
    Published("Qwen2.5-7B", "2412.15115", 7_615_616_512, 152064, 3584, 28, 18944, 28, 4, 128),
    Published("Qwen2.5-14B", "2412.15115", 14_770_033_664, 152064, 5120, 48, 13824, 40, 8, 128),
    Published("Qwen2.5-32B", "2412.15115", 32_763_876_352, 152064, 5120, 64, 27648, 40, 8, 128),
    Published("Qwen2.5-72B", "2412.15115", 72_706_203_648, 152064, 8192, 80, 29568, 64, 8, 128),
    Published("Qwen3-0.6B", "2505.09388", 596_049_920, 151936, 1024, 28, 3072, 16, 8, 128, True),
    Published("Qwen3-1.7B", "2505.09388", 1_720_574_976, 151936, 2048, 28, 6144, 16, 8, 128, True),
    Published("Qwen3-4B", "2505.09388", 4_022_468_096, 151936, 2560, 36, 9728, 32, 8, 128, True),
    Published("Qwen3-8B", "2505.09388", 8_190_735_360, 151936, 4096, 36, 12288, 32, 8, 128),
    Published("Qwen3-14B", "2505.09388", 14_768_307_200, 151936, 5120, 40, 17408, 40, 8, 128),
    Published("Qwen3-32B", "2505.09388", 32_762_123_264, 151936, 5120, 64, 25600, 64, 8, 128),
)


def neighbours(parameters: float, many: int = 4) -> list[Published]:
    """The published models nearest in size, smallest first."""
    near = sorted(MODELS, key=lambda model: abs(log(model.parameters / parameters)))[:many]
    return sorted(near, key=lambda model: model.parameters)


def usual_aspect(parameters: float) -> float:
    """Hidden size over layers as models of about that size have it: a mean of logarithms, by nearness in ln N."""
    nearest = min(abs(log(model.parameters / parameters)) for model in MODELS)
    total = weights = 0.0
    for model in MODELS:
        distance = abs(log(model.parameters / parameters)) - nearest
        weight = exp(-((distance / SPREAD) ** 2) / 2)
        total, weights = total + weight * log(model.aspect), weights + weight
    return exp(total / weights)

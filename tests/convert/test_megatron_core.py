"""What megatron-core itself computes and saves, where it is installed (pip install --no-deps megatron-core, einops).

It is no dependency: test_megatron.py compares with files that are made after its documentation.
"""

from argparse import Namespace
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from megaxf.convert import megatron, megatron_dist
from megaxf.convert.interface import Form, Trained
from megaxf.models.llama import Config, Model
from tests.convert.test_megatron import FILE, arguments

SETTINGS = {
    "vocab_size": 320,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "head_dim": 10,
    "max_position_embeddings": 96,
    "rms_norm_eps": 0.03,
    "rope_theta": 777.0,
    "attention_bias": True,
    "qk_norm": True,
}
TOKENS = torch.randint(0, 320, (2, 48), generator=torch.Generator().manual_seed(3))


def build(config, ranks):
    """megatron-core's GPT with random weights, biases and norms among them."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    fused = ("bias_activation_fusion", "masked_softmax_fusion", "bias_dropout_fusion", "apply_rope_fusion")
    settings = TransformerConfig(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        layernorm_epsilon=config.rms_norm_eps,
        tensor_model_parallel_size=ranks,
        normalization="RMSNorm",
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=config.attention_bias,
        qk_layernorm=config.qk_norm,
        use_cpu_initialization=True,
        init_method_std=0.3,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        **dict.fromkeys(fused, False),
    )
    torch.manual_seed(1)
    model = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_norm),
        vocab_size=512,
        max_sequence_length=96,
        position_embedding_type="rope",
        rotary_base=777,
        share_embeddings_and_output_weights=False,
        parallel_output=False,
    )
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
    return model


@contextmanager
def ranks_of_megatron():
    """All ranks share each matrix."""
    import megatron.core.tensor_parallel as tensor_parallel
    from megatron.core import parallel_state

    with ExitStack() as stack:  # It takes for granted that there is a GPU.
        stack.enter_context(patch.object(torch.cuda, "current_device", lambda: "cpu"))
        tracker = SimpleNamespace(fork=lambda *name: nullcontext())
        stack.enter_context(patch.object(tensor_parallel, "get_cuda_rng_tracker", lambda *more, **other: tracker))
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
        stack.callback(parallel_state.destroy_model_parallel)
        yield


def compute(model):
    """Logits of all tokens."""
    hidden = torch.ones(48, 48).triu(1).bool()[None, None]
    with torch.no_grad():
        return model(TOKENS, torch.arange(48)[None].expand(2, -1), hidden)[..., :320]


def save_and_compute(folder, groups):
    """Save this rank's share as Megatron-LM does; gives the logits of all tokens."""
    ranks, config = dist.get_world_size(), Config(**SETTINGS, num_key_value_heads=groups)
    with ranks_of_megatron():
        model = build(config, ranks)
        place = folder / "iter_0000010" / f"mp_rank_{dist.get_rank():02d}"
        place.mkdir(parents=True)
        torch.save({"args": arguments(config, ranks, 1), "model": model.state_dict_for_save_checkpoint()}, place / FILE)
        return compute(model)


def load_and_compute(folder, config):
    """The logits of a model that megatron-core loads from a folder in its layout torch_dist."""
    from megatron.core import dist_checkpointing

    with ranks_of_megatron(), torch.serialization.safe_globals([Namespace]):
        model = build(config, dist.get_world_size())
        # As --dist-ckpt-strictness log_all: states of layers that hold no weight are not there.
        found = dist_checkpointing.load(model.sharded_state_dict(), str(folder), strict="log_all")
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        absent = model.load_state_dict(tensors, strict=False)
        assert not absent.unexpected_keys and all(key.endswith("_extra_state") for key in absent.missing_keys)
        return compute(model)


@pytest.mark.long
@pytest.mark.parametrize("groups", [2, 1, 6])
def test_logits_are_megatron_cores(tmp_path, run_on, groups):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    expected = run_on(2, save_and_compute, tmp_path, groups)[0]
    found = megatron.read(tmp_path / "iter_0000010")
    model = Model(found.config)
    model.load_state_dict(dict(found.weights))
    with torch.no_grad():
        logits = model.logits(model(TOKENS))
    assert expected.abs().max() > 1 and torch.allclose(logits, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("without", ["qk_norm", "attention_bias"])
def test_it_loads_what_is_written(tmp_path, run_on, make_weights, without):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    config = Config(**SETTINGS | {without: False}, num_key_value_heads=2)
    weights = make_weights(config)
    megatron_dist.write(Trained(config, weights, None, "float32", []), tmp_path / "out", Form())
    model = Model(config)
    model.load_state_dict(dict(weights))
    with torch.no_grad():
        expected = model.logits(model(TOKENS))
    for logits in run_on(2, load_and_compute, tmp_path / "out/release", config):
        assert expected.abs().max() > 1 and torch.allclose(logits, expected, rtol=1e-5, atol=2e-5)

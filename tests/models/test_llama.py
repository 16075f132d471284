import collections
import fnmatch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megaxf.models import matmul
from megaxf.models.decoder import RECOMPUTE
from megaxf.models.llama import TENSOR_PLAN, Model
from megaxf.models.loss import chunked_cross_entropy


def step(model, tokens, **inputs):
    """(hidden states, gradients by name) of one forward and backward pass."""
    hidden = model(tokens, **inputs)
    labels = tokens.roll(-1, 1).flatten()
    chunked_cross_entropy(hidden.flatten(0, 1), model.head_weight(), labels)[0].backward()
    return hidden.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_names_and_shapes(tiny):
    model = tiny(num_hidden_layers=1, attention_bias=True, qk_norm=True)
    layer = "model.layers.0."
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "model.embed_tokens.weight": (61, 48),
        f"{layer}self_attn.q_proj.weight": (64, 48),
        f"{layer}self_attn.q_proj.bias": (64,),
        f"{layer}self_attn.k_proj.weight": (32, 48),
        f"{layer}self_attn.k_proj.bias": (32,),
        f"{layer}self_attn.v_proj.weight": (32, 48),
        f"{layer}self_attn.v_proj.bias": (32,),
        f"{layer}self_attn.o_proj.weight": (48, 64),
        f"{layer}self_attn.q_norm.weight": (16,),
        f"{layer}self_attn.k_norm.weight": (16,),
        f"{layer}mlp.gate_proj.weight": (80, 48),
        f"{layer}mlp.up_proj.weight": (80, 48),
        f"{layer}mlp.down_proj.weight": (48, 80),
        f"{layer}input_layernorm.weight": (48,),
        f"{layer}post_attention_layernorm.weight": (48,),
        "model.norm.weight": (48,),
        "lm_head.weight": (61, 48),
    }
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_tied_head_is_the_table(tiny):
    model = tiny(tie_word_embeddings=True)
    assert model.head_weight() is model.model.embed_tokens.weight
    assert "lm_head.weight" not in model.state_dict()


def test_tensor_plan_names_every_matrix_once(tiny):
    """Modules with parameters outside the plan would stay whole on every rank."""
    model = tiny(qk_norm=True)
    with_parameters = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    for module in with_parameters:
        assert sum(fnmatch.fnmatchcase(module, pattern) for pattern in TENSOR_PLAN) == 1, module
    for pattern in TENSOR_PLAN:
        assert fnmatch.filter([name for name, _ in model.named_modules()], pattern), pattern


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputation_changes_no_bit(tiny, tokens, dtype):
    hidden, gradients = step(tiny(dtype=dtype), tokens)
    for recompute in RECOMPUTE[1:]:
        again, same = step(tiny(dtype=dtype, recompute=recompute), tokens)
        assert torch.equal(hidden, again)
        for name, gradient in gradients.items():
            assert torch.equal(gradient, same[name]), (recompute, name)


class Counter(TorchDispatchMode):
    """Counts calls of ATen operators inside."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_what_is_recomputed(tiny, tokens, monkeypatch):
    """Selective: two norms and one silu a layer, and no matrix product. Full: the layers, but not the final norm.

    With PyTorch's own products: it knows that to recompute the last one's operands is enough.
    """
    monkeypatch.setattr(matmul, "SLOW_MKL", False)
    again = {}
    for recompute in RECOMPUTE:
        hidden = tiny(recompute=recompute)(tokens)
        with Counter() as counter:
            hidden.sum().backward()
        again[recompute] = counter.calls
    selective, full = again["selective"] - again["none"], again["full"] - again["none"]
    assert (selective["rsqrt"], selective["silu"]) == (2 * 2, 2)
    assert not {"mm", "bmm", "addmm", "linear"} & selective.keys()
    assert not [name for name in selective if "attention" in name]
    assert (full["rsqrt"], full["silu"], full["mm"]) == (2 * 2, 2, 2 * 6)  # Stops short of down_proj.


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_bf16_all_the_way(tiny, tokens, backend):
    hidden, gradients = step(tiny(dtype=torch.bfloat16, attention_backend=backend), tokens)
    exact, exact_gradients = step(tiny(), tokens)
    assert hidden.dtype == torch.bfloat16
    assert (hidden.float() - exact).norm() < 0.03 * exact.norm()
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.bfloat16
        assert (gradient.float() - exact_gradients[name]).norm() < 0.06 * exact_gradients[name].norm(), name


def test_compiled_layers_give_the_same(tiny, tokens):
    hidden, gradients = step(tiny(recompute="selective"), tokens)
    model = tiny(recompute="selective")
    for layer in model.layers:
        layer.compile(backend="aot_eager", fullgraph=True)
    same, same_gradients = step(model, tokens)
    torch.testing.assert_close(hidden, same)
    torch.testing.assert_close(gradients, same_gradients)


def test_on_the_meta_device(tiny_settings, tiny):
    with torch.device("meta"):
        model = Model(tiny().config)
        assert model(torch.zeros(1, 8, dtype=torch.int64)).shape == (1, 8, 48)


def test_unknown_recompute_is_named(tiny):
    with pytest.raises(ValueError, match="recompute = 'some' is not known; use one of none, selective, full"):
        tiny(recompute="some")

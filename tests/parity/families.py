"""GPT-2 and GPT-NeoX beside transformers: the same weights in both, under the names of either."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from megaxf.models.initialize import initialize
from megaxf.models.registry import family

SHAPE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 84,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
CASES = {
    "gpt2": {"family": "gpt2"},
    "gpt2, untied, large eps": {"family": "gpt2", "tie_word_embeddings": False, "layer_norm_eps": 1e-2},
    "gpt2, exact gelu": {"family": "gpt2", "hidden_act": "gelu"},
    "neox": {"family": "gpt_neox", "rotary_emb_base": 500.0},
    "neox, one after the other, tied": {
        "family": "gpt_neox",
        "use_parallel_residual": False,
        "tie_word_embeddings": True,
        "rotary_pct": 0.5,
    },
    "neox, no biases, all rotary": {
        "family": "gpt_neox",
        "attention_bias": False,
        "rotary_pct": 1.0,
        "hidden_act": "gelu_fast",
        "layer_norm_eps": 1e-2,
    },
}


def our_model(case: str, **options):
    """A model of ours whose biases and norms are not trivial."""
    module = family(CASES[case]["family"])
    model = module.Model(module.Config(**(SHAPE | CASES[case])), **options)
    initialize(model, 5)
    generator = torch.Generator().manual_seed(6)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def their_model(ours):
    """The same in transformers, in fp32, with eager attention and without dropout."""
    config = ours.config
    same = {"vocab_size": config.vocab_size, "attn_implementation": "eager", "bos_token_id": 1, "eos_token_id": 2}
    same |= {"tie_word_embeddings": config.tie_word_embeddings, "use_cache": False}
    if config.family == "gpt2":
        settings = GPT2Config(
            n_embd=config.hidden_size, n_inner=config.intermediate_size, n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads, n_positions=config.max_position_embeddings,
            activation_function=config.hidden_act, layer_norm_epsilon=config.layer_norm_eps,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **same,
        )  # fmt: skip
        theirs = GPT2LMHeadModel(settings)
    else:
        named = {name: getattr(config, name) for name in (*SHAPE, "layer_norm_eps", "hidden_act", "attention_bias")}
        theirs = GPTNeoXForCausalLM(
            GPTNeoXConfig(**named | same, rotary_pct=config.rotary_pct, rotary_emb_base=config.rotary_emb_base,
                          use_parallel_residual=config.use_parallel_residual)
        )  # fmt: skip
    result = theirs.float().load_state_dict(as_theirs(dict(ours.named_parameters())), strict=False)
    assert set(result.missing_keys) <= {"lm_head.weight"} and not result.unexpected_keys
    return theirs.train()


def as_theirs(tensors):
    """Tensors by our names -> by those of a model of transformers."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, key = name.rpartition(".")
        if stem.endswith(("attn.k_proj", "attn.v_proj")):
            continue
        if stem.endswith("attn.q_proj"):
            stem = stem.removesuffix("q_proj")
            tensor = torch.cat([tensors[f"{stem}{part}_proj.{key}"] for part in "qkv"])
            stem += "c_attn"
        if key == "weight" and stem.endswith(("c_attn", "c_proj", "c_fc")):
            tensor = tensor.t()
        found[f"{stem.replace('embed_out', 'lm_head')}.{key}"] = tensor
    return found


def counted_targets(length):
    """Two rows of tokens and the labels that follow them, some of which do not count."""
    tokens = torch.randint(0, 101, (2, length), generator=torch.Generator().manual_seed(8))
    labels = torch.full_like(tokens, -100)
    labels[:, :-1] = tokens[:, 1:]
    labels[0, 20:40] = -100
    return tokens, labels

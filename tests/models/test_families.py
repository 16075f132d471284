"""GPT-2 and GPT-NeoX by themselves: what is cut, what is recomputed, who sees whom, initial weights, settings."""

import fnmatch
import math

import pytest
import torch
from pydantic import ValidationError

from megaxf.engine.optimizer import parameter_groups
from megaxf.models import gpt2, gpt_neox
from megaxf.models.decoder import RECOMPUTE
from megaxf.models.initialize import initialize
from megaxf.models.loss import chunked_cross_entropy
from megaxf.models.registry import family
from tests.models.test_visibility import DOCUMENT_IDS, LENGTHS, POSITIONS, SlotCache
from tests.parity.families import CASES, SHAPE, our_model

each = pytest.mark.parametrize("case", ["gpt2", "neox", "neox, one after the other, tied"])


def logits(model, tokens, **inputs):
    with torch.no_grad():
        return model.logits(model(tokens, **inputs))


@each
def test_tensor_plan_names_every_module_once(case):
    model = our_model(case)
    plan = family(model.config.family).TENSOR_PLAN
    if model.config.tie_word_embeddings:
        plan = {pattern: kind for pattern, kind in plan.items() if pattern != model.head_name}
    for module in {name.rpartition(".")[0] for name, _ in model.named_parameters()}:
        assert sum(fnmatch.fnmatchcase(module, pattern) for pattern in plan) == 1, module
    for pattern in plan:
        assert fnmatch.filter([name for name, _ in model.named_modules()], pattern), pattern


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputation_changes_no_bit(case, dtype, tokens):
    found = []
    for recompute in RECOMPUTE:
        model = our_model(case, dtype=dtype, recompute=recompute, dropout=0.1)
        hidden = model(tokens, samples=torch.arange(2))
        chunked_cross_entropy(hidden, model.head_weight(), tokens)[0].backward()
        found.append([hidden, *(parameter.grad for parameter in model.parameters())])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@each
def test_logits_before_a_changed_token_keep_every_bit(case, tokens):
    model, other = our_model(case), tokens.clone()
    other[:, 11] += 1
    before, after = logits(model, tokens), logits(model, other)
    assert torch.equal(before[:, :11], after[:, :11])
    assert (before != after).any(-1)[:, 11:].all()


@each
def test_packed_documents_are_as_if_alone(case, tokens):
    model = our_model(case)
    packed = logits(model, tokens, document_ids=DOCUMENT_IDS, positions=POSITIONS)
    alone = [logits(model, part) for part in tokens.split(LENGTHS, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=1e-5, atol=1e-5)


@each
def test_prefill_in_pieces_is_one_forward_pass(case, tokens):
    model, cache = our_model(case), SlotCache()
    places = torch.arange(24)[None].split(7, dim=1)
    pieces = [logits(model, tokens[:, at[0]], positions=at, cache=cache) for at in places]
    torch.testing.assert_close(torch.cat(pieces, 1), logits(model, tokens), rtol=1e-5, atol=1e-5)


@each
def test_initial_weights(case):
    """Normal, those that write into the residual stream narrower by sqrt(2 L); biases 0, norm weights 1."""
    module = family(CASES[case]["family"])
    wide = SHAPE | CASES[case] | {"hidden_size": 192, "vocab_size": 400, "initializer_range": 0.02}
    model = module.Model(module.Config(**wide))
    initialize(model, 1)
    narrower = 0
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert (weight == (0 if name.endswith("bias") else 1)).all(), name
            continue
        residual = name.endswith(("c_proj.weight", "attention.dense.weight", "dense_4h_to_h.weight"))
        narrower += residual
        assert weight.std().item() == pytest.approx(0.02 / math.sqrt(6) if residual else 0.02, rel=0.05), name
    assert narrower == 2 * 3


@each
def test_only_matrices_and_tables_decay(case):
    model = our_model(case)
    decaying, others = parameter_groups(dict(model.named_parameters()), 0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(names[id(parameter)].endswith(".weight") for parameter in decaying["params"])
    assert {names[id(parameter)].rpartition(".")[2] for parameter in others["params"]} == {"weight", "bias"}
    assert all(parameter.dim() == 1 for parameter in others["params"]) and others["weight_decay"] == 0


def test_the_shares_of_heads_that_cannot_be():
    with pytest.raises(ValidationError, match=r"num_attention_heads = 5 does not divide model.hidden_size = 48"):
        gpt2.Config(**SHAPE | {"num_attention_heads": 5})
    with pytest.raises(ValidationError, match=r"rotary_pct = 0.2 of 16 dimensions of a head is 3; .* even number"):
        gpt_neox.Config(**SHAPE, rotary_pct=0.2)
    assert gpt2.Config(**SHAPE | {"intermediate_size": 84}).intermediate_size == 84
    assert gpt2.Config(**{key: SHAPE[key] for key in SHAPE.keys() - {"intermediate_size"}}).intermediate_size == 192

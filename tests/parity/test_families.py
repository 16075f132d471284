"""GPT-2 and GPT-NeoX with the same weights as in transformers (fp32, eager) have its logits, loss, gradients, tokens.

Sizes differ from each other, weights are large enough that attention is far from uniform.
"""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from megaxf.config import load_model
from megaxf.generate import Sampling, generate
from megaxf.models.attention import BACKENDS
from megaxf.models.loss import chunked_cross_entropy
from megaxf.plan.parameters import count
from tests.parity.families import CASES, as_theirs, counted_targets, our_model, their_model

LENGTH = 56
TOLERANCE = 1e-5
"""Of the difference's norm to the norm, as in test_transformers.py."""


def distance(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("case", CASES)
def test_logits_loss_and_every_gradient(case, backend):
    ours = our_model(case, attention_backend=backend)
    theirs = their_model(ours)
    tokens, labels = counted_targets(LENGTH)
    output = theirs(tokens, labels=labels.roll(1, 1))
    output.loss.backward()

    hidden = ours(tokens)
    loss, _ = chunked_cross_entropy(hidden.flatten(0, 1), ours.head_weight(), labels.flatten(), chunk_size=50)
    count = (labels != -100).sum()
    (loss / count).backward()

    assert distance(ours.logits(hidden), output.logits) < TOLERANCE
    assert distance(ours.logits(hidden)[:, -1], output.logits[:, -1]) < TOLERANCE
    assert (loss / count).item() == pytest.approx(output.loss.item(), rel=TOLERANCE)
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    gradients = as_theirs({name: parameter.grad for name, parameter in ours.named_parameters()})
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert distance(gradient, expected[name]) < TOLERANCE, name


def test_shipped_models_have_as_many_parameters_as_in_transformers():
    pythia = {"vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    pythia |= {"intermediate_size": 3072}
    for name, theirs in {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config()),
        "pythia-160m": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**pythia)),
        "gpt-neox-20b": lambda: GPTNeoXForCausalLM(GPTNeoXConfig()),
    }.items():
        with torch.device("meta"):
            expected = sum(parameter.numel() for parameter in theirs().parameters())
        assert count(load_model(name)).total == expected


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens(case):
    ours = our_model(case)
    theirs = their_model(ours).eval()
    prompts = [[7, 3, 88, 4, 51], [9], [60, 61, 62, 63, 64, 65, 66, 67, 68]]
    found = generate(ours, prompts, max_new_tokens=20, sampling=Sampling(), prefill_chunk=4)
    for prompt, result in zip(prompts, found, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, use_cache=False, eos_token_id=None
        )
        assert result.tokens == expected[0, len(prompt) :].tolist()

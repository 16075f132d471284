"""Greedy tokens and log-probabilities are those of transformers (fp32), prompt by prompt, in one batch of ours."""

import pytest
import torch

from megaxf.generate import Sampling, generate
from tests.parity.test_transformers import models

PROMPTS = [[7], [60, 61, 3, 3, 99, 2, 14], list(range(40, 55)), list(range(90, 10, -2))]
NEW = 16


@pytest.mark.parametrize("case", ["llama", "mistral, window", "qwen2, biases", "qwen3, qk norm, tied"])
def test_tokens_and_their_log_probabilities(case):
    ours, theirs = models(case, "sdpa")
    theirs.eval()
    for sampling, penalty in ((Sampling(), 1.0), (Sampling(repetition_penalty=1.3), 1.3)):
        options = {"batch_size": 3, "prefill_chunk": 6, "logprobs": True}
        found = [
            generate(ours, PROMPTS, max_new_tokens=NEW, sampling=sampling, cache=cache, **options)
            for cache in (None, "paged")
        ]
        for prompt, result, paged in zip(PROMPTS, *found, strict=True):
            expected = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, repetition_penalty=penalty,
                eos_token_id=None, use_cache=False,
            )  # fmt: skip
            assert result.tokens == paged.tokens == expected[0, len(prompt) :].tolist()
            with torch.no_grad():
                chances = theirs(expected).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            chosen = chances.gather(1, torch.tensor(result.tokens)[:, None])[:, 0]
            assert result.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)

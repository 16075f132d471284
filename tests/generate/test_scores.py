"""Log-probabilities are those of the model's own logits in one pass over the whole text."""

import pytest
import torch

from megaxf.generate import Result, Sampling, generate


def scores(model, tokens):
    """Of every token but the first, in float64."""
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([tokens])))[0].double()
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_k=20, repetition_penalty=1.4, seed=3)],
    ids=["greedy", "drawn"],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "prefill_chunk": 4, "cache": "paged"}])
def test_of_prompt_and_continuation(make_model, prompts, sampling, options):
    model = make_model()
    results = generate(
        model, prompts, max_new_tokens=9, sampling=sampling, logprobs=True, prompt_logprobs=True, **options
    )
    for prompt, result in zip(prompts, results, strict=True):
        expected = scores(model, prompt + result.tokens)
        assert result.prompt_logprobs + result.logprobs == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert len(result.logprobs) == len(result.tokens)


def test_of_the_prompt_alone(make_model, prompts):
    model = make_model()
    found = generate(model, prompts[1:2], max_new_tokens=0, sampling=Sampling(), prompt_logprobs=True)
    assert found == [Result([], "length", prompt_logprobs=pytest.approx(scores(model, prompts[1]), abs=1e-5))]
    assert generate(model, prompts[:1], max_new_tokens=0, sampling=Sampling()) == [Result([], "length")]


def test_none_where_not_asked_for(make_model, prompts):
    (result,) = generate(make_model(), prompts[:1], max_new_tokens=2, sampling=Sampling())
    assert result.logprobs is None and result.prompt_logprobs is None and result.text is None

"""The cache, the batch, the queue and the chunks of the prefill change no token."""

import pytest
import torch

from megaxf.generate import GenerateError, Result, Sampling, Stop, generate

KINDS = {
    "plain": {},
    "window 3": {"sliding_window": 3},
    "window 8": {"sliding_window": 8},
    "norms": {"qk_norm": True},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
}
GREEDY = Sampling()


def spell(ids):
    """A decoder that writes each token as <id>."""
    return "".join(f"<{token}>" for token in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_cache_batch_and_chunks_give_the_tokens_of_whole_passes(make_model, prompts, without_cache, kind):
    model = make_model(**KINDS[kind])
    expected = [without_cache(model, prompt, 20) for prompt in prompts]
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert generate(model, [prompt], max_new_tokens=20, sampling=GREEDY)[0] == (tokens, "length", *[None] * 3)
    for options in (
        *({"prefill_chunk": chunk} for chunk in (1, 3, 7, 20)),
        {"cache": "static"},
        {"cache": "paged", "prefill_chunk": 5},
        {"batch_size": 1},
        {"batch_size": 3, "cache": "paged"},
    ):
        results = generate(model, prompts, max_new_tokens=20, sampling=GREEDY, **options)
        assert [result.tokens for result in results] == expected, options


@pytest.mark.parametrize("cached", [False, True])
def test_window_of_three_sees_three(make_model, cached):
    model = make_model(sliding_window=3, num_hidden_layers=1)
    tokens = list(range(20, 32))

    def last(changed):
        altered = [200 if place == changed else token for place, token in enumerate(tokens)]
        if cached:
            result = generate(
                model, [altered], max_new_tokens=1, sampling=GREEDY, stop=Stop(), prefill_chunk=1, logprobs=True
            )
            return result[0].tokens, result[0].logprobs
        with torch.no_grad():
            return model.logits(model(torch.tensor([altered])))[0, -1].tolist()

    assert last(None) == last(8)
    assert last(None) != last(9)


@pytest.mark.parametrize("ids", [[256, 10], [10]])
@pytest.mark.parametrize("reason", ["eos", "stop"])
def test_any_end_token_stops_its_row_at_once(make_model, prompts, ids, reason):
    model = make_model()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "embed" in name or "norm" in name else 0.0)
        model.lm_head.weight[10] = 1.0
    free = generate(model, prompts, max_new_tokens=2, sampling=GREEDY)
    assert free == [Result([10, 10], "length")] * 4
    stop = Stop(eos_ids=ids) if reason == "eos" else Stop(ids=ids)
    told = []
    results = generate(
        model, prompts, max_new_tokens=5, sampling=GREEDY, stop=stop, decode=spell, on_text=lambda *a: told.append(a)
    )
    assert results == [Result([], reason, "")] * 4 and told == []


@pytest.mark.parametrize("batch_size", [None, 2])
def test_rows_stop_one_by_one(make_model, prompts, batch_size):
    model = make_model()
    free = generate(model, prompts, max_new_tokens=12, sampling=GREEDY)
    ends = [free[0].tokens[0], free[2].tokens[5]]
    told, ended = [""] * 4, []

    def tell(row, piece):
        told[row] += piece

    results = generate(
        model, prompts, max_new_tokens=12, sampling=GREEDY, stop=Stop(eos_ids=ends), decode=spell, on_text=tell,
        batch_size=batch_size, told=ended.append,
    )  # fmt: skip
    assert sum(ended) == 4
    for result, whole, heard in zip(results, free, told, strict=True):
        stop = next((place for place, token in enumerate(whole.tokens) if token in ends), 12)
        assert (result.tokens, result.reason) == (whole.tokens[:stop], "eos" if stop < 12 else "length")
        assert heard == result.text == spell(result.tokens)
    assert results[0].tokens == []


def test_a_long_row_does_not_pay_for_those_that_have_ended(make_model, prompts):
    model, rows = make_model(), []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2].numel()))
    ends = [result.tokens[3] for result in generate(model, prompts[:3], max_new_tokens=4, sampling=GREEDY)]
    rows.clear()
    results = generate(model, prompts, max_new_tokens=20, sampling=GREEDY, stop=Stop(eos_ids=ends))
    computed = sum(len(prompt) for prompt in prompts) + sum(
        max(len(result.tokens) - (result.reason == "length"), 0) for result in results
    )
    assert max(len(result.tokens) for result in results) > 4
    assert sum(rows) == computed


def test_stops_at_the_longest_sequence_and_never_wraps(make_model, without_cache):
    model = make_model(max_position_embeddings=32)
    prompt = list(range(30))
    result = generate(model, [prompt, [1]], max_new_tokens=10, sampling=GREEDY)
    assert (len(result[0].tokens), result[0].reason) == (2, "context")
    assert (len(result[1].tokens), result[1].reason) == (10, "length")
    assert result[0].tokens == without_cache(model, prompt, 2)
    with pytest.raises(GenerateError, match=r"prompt 1 has 32 tokens and the model's longest sequence is 32"):
        generate(model, [[1], list(range(32))], max_new_tokens=1, sampling=GREEDY)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[]], {}, "prompt 0 is empty"),
        ([[1, 257]], {}, "prompt 0 has token 257, beyond the vocabulary of 257"),
        ([[1]], {"max_new_tokens": -1}, "max_new_tokens = -1 must be 0 or more"),
        ([[1]], {"prefill_chunk": 0}, "prefill_chunk = 0 must be 1 or more"),
        ([[1]], {"batch_size": 0}, "batch_size = 0 must be 1 or more"),
        ([[1]], {"stop": Stop(ids=[257])}, "stop id 257 is beyond the vocabulary of 257"),
        ([[1]], {"stop": Stop(strings=["a"])}, "give `decode` too"),
        ([[1]], {"stop": Stop(strings=["a", ""]), "decode": spell}, "a stop string is empty"),
    ],
)
def test_requests_without_meaning(make_model, prompts, options, message):
    with pytest.raises(GenerateError, match=message):
        generate(make_model(), prompts, **{"max_new_tokens": 1, "sampling": GREEDY, **options})


def test_nothing_to_do(make_model):
    nothing = [Result([], "length")] * 2
    assert generate(make_model(), [[1], [2]], max_new_tokens=0, sampling=GREEDY) == nothing
    assert generate(make_model(), [], max_new_tokens=5, sampling=GREEDY) == []


def test_training_is_left_as_it_was(make_model):
    """Six steps with and without a sample in between: equal weights, also with the global random state in use."""

    def train(sample):
        torch.manual_seed(3)
        model = make_model().train()
        model.model.norm.eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(6):
            loss = model.logits(model(torch.randint(0, 257, (2, 9)))).logsumexp(-1).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if sample and step == 2:
                generate(model, [[1, 2], [3]], max_new_tokens=4, sampling=Sampling(temperature=1.0, seed=9))
                assert model.training and model.layers[0].training and not model.model.norm.training
        return list(model.parameters())

    assert all(map(torch.equal, train(False), train(True)))

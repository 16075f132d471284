"""The cache, the batch and the chunks of the prefill change no token."""

import pytest
import torch

from megaxf.generate import GenerateError, Sampling, generate
from megaxf.generate.cache import KVCache
from megaxf.generate.generate import prefill

KINDS = {
    "plain": {},
    "window 3": {"sliding_window": 3},
    "window 8": {"sliding_window": 8},
    "norms": {"qk_norm": True},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
}
GREEDY = Sampling()


def cache_of(model, batch, length, chunk):
    config = model.config
    return KVCache(
        layers=config.num_hidden_layers, batch=batch, length=length, kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim, window=config.sliding_window, chunk=chunk, dtype=torch.float32, device="cpu",
    )  # fmt: skip


def without_cache(model, prompt, count):
    """Greedy tokens from whole forward passes."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(model.logits(model(torch.tensor([tokens]))[0, -1]).argmax().item())
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kind", KINDS)
def test_cache_batch_and_chunks_give_the_tokens_of_whole_passes(make_model, prompts, kind):
    model = make_model(**KINDS[kind])
    expected = [without_cache(model, prompt, 20) for prompt in prompts]
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert generate(model, [prompt], max_new_tokens=20, sampling=GREEDY)[0] == (tokens, "length")
    for chunk in (1, 3, 7, 20, 512):
        results = generate(model, prompts, max_new_tokens=20, sampling=GREEDY, prefill_chunk=chunk)
        assert [result.tokens for result in results] == expected, chunk


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 7, 20])
def test_prefill_in_chunks(make_model, kind, chunk):
    model = make_model(**KINDS[kind])
    prompt = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model.logits(model(prompt))[:, -1]
        pieces = prefill(model, prompt.tolist(), cache_of(model, 1, 20, chunk), chunk)
    assert torch.allclose(pieces, whole, rtol=1e-5, atol=1e-5)


def test_a_window_forgets(make_model):
    model = make_model(sliding_window=8)
    cache = cache_of(model, 1, 64, 5)
    assert cache.slots == 8 - 1 + 5
    with torch.no_grad():
        prefill(model, [list(range(40))], cache, 5)
    held = cache.reserve(torch.tensor([[40]]))
    assert sorted(held[0].tolist()) == list(range(29, 41))
    with pytest.raises(GenerateError, match="made for 64 tokens, 5 at a time, and got 1 up to position 64"):
        cache.reserve(torch.tensor([[64]]))


@pytest.mark.parametrize("cached", [False, True])
def test_window_of_three_sees_three(make_model, cached):
    model = make_model(sliding_window=3, num_hidden_layers=1)
    tokens = list(range(20, 32))

    def last(changed):
        altered = [200 if place == changed else token for place, token in enumerate(tokens)]
        with torch.no_grad():
            if cached:
                return prefill(model, [altered], cache_of(model, 1, 12, 1), 1)[0]
            return model.logits(model(torch.tensor([altered])))[0, -1]

    assert torch.equal(last(None), last(8))
    assert not torch.equal(last(None), last(9))


@pytest.mark.parametrize("ids", [[256, 10], [10]])
def test_any_end_token_stops_its_row_at_once(make_model, prompts, ids):
    model = make_model()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "embed" in name or "norm" in name else 0.0)
        model.lm_head.weight[10] = 1.0
    assert generate(model, prompts, max_new_tokens=2, sampling=GREEDY) == [([10, 10], "length")] * 4
    told = []
    results = generate(
        model, prompts, max_new_tokens=5, sampling=GREEDY, eos_ids=ids, on_token=lambda *a: told.append(a)
    )
    assert results == [([], "eos")] * 4 and told == []


def test_rows_stop_one_by_one(make_model, prompts):
    model = make_model()
    free = generate(model, prompts, max_new_tokens=12, sampling=GREEDY)
    ends = [free[0].tokens[0], free[2].tokens[5]]
    told = [[] for _ in prompts]
    results = generate(
        model, prompts, max_new_tokens=12, sampling=GREEDY, eos_ids=ends, on_token=lambda row, t: told[row].append(t)
    )
    for result, whole, heard in zip(results, free, told, strict=True):
        stop = next((place for place, token in enumerate(whole.tokens) if token in ends), 12)
        assert result == (whole.tokens[:stop], "eos" if stop < 12 else "length") and heard == result.tokens
    assert results[0].tokens == []


def test_stops_at_the_longest_sequence_and_never_wraps(make_model):
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
    ],
)
def test_requests_without_meaning(make_model, prompts, options, message):
    with pytest.raises(GenerateError, match=message):
        generate(make_model(), prompts, **{"max_new_tokens": 1, "sampling": GREEDY, **options})


def test_nothing_to_do(make_model):
    assert generate(make_model(), [[1], [2]], max_new_tokens=0, sampling=GREEDY) == [([], "length")] * 2
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

"""Who sees whom: causality, sliding windows, packed documents, cached keys."""

import pytest
import torch

from megaxf.models.attention import BACKENDS

both_backends = pytest.mark.parametrize("backend", list(BACKENDS))
windows = pytest.mark.parametrize("window", [None, 5])


def logits(model, tokens, **inputs):
    with torch.no_grad():
        return model.logits(model(tokens, **inputs))


def changed(tokens, place):
    other = tokens.clone()
    other[:, place] = (other[:, place] + 1) % 61
    return other


@both_backends
@windows
@pytest.mark.parametrize("place", [0, 1, 11, 23])
def test_logits_before_a_changed_token_keep_every_bit(tiny, tokens, backend, window, place):
    model = tiny(attention_backend=backend, sliding_window=window)
    before, after = logits(model, tokens), logits(model, changed(tokens, place))
    assert torch.equal(before[:, :place], after[:, :place])
    reached = slice(place, None if window is None else place + 2 * (window - 1) + 1)  # Two layers of windows.
    assert (before != after).any(-1)[:, reached].all()
    if window is not None:
        assert torch.equal(before[:, reached.stop :], after[:, reached.stop :])


@both_backends
@windows
def test_gradients_flow_backwards_only(tiny, tokens, backend, window):
    model = tiny(attention_backend=backend, sliding_window=window)
    embedded = model.embed(tokens, model.shared(tokens)).detach().requires_grad_()
    model.embed = lambda *_: embedded
    model.logits(model(tokens))[:, 9].sum().backward()
    reached = embedded.grad.abs().sum(-1) > 0
    first = 0 if window is None else 9 - 2 * (window - 1)
    assert reached[:, first:10].all() and not reached[:, 10:].any() and not reached[:, :first].any()


@both_backends
def test_window_of_three(tiny, tokens, backend):
    """One layer: position 10 sees 8, 9 and 10."""
    model = tiny(attention_backend=backend, sliding_window=3, num_hidden_layers=1)
    base = logits(model, tokens)[:, 10]
    assert torch.equal(base, logits(model, changed(tokens, 7))[:, 10])
    assert not torch.equal(base, logits(model, changed(tokens, 8))[:, 10])


LENGTHS = (7, 1, 11, 5)
DOCUMENT_IDS = torch.cat([torch.full((length,), index) for index, length in enumerate(LENGTHS)]).expand(2, -1)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1)


@both_backends
@windows
def test_packed_documents_are_as_if_alone(tiny, tokens, backend, window):
    model = tiny(attention_backend=backend, sliding_window=window)
    packed = logits(model, tokens, document_ids=DOCUMENT_IDS, positions=POSITIONS)
    alone = [logits(model, part) for part in tokens.split(LENGTHS, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), rtol=1e-5, atol=1e-5)


@both_backends
def test_a_document_does_not_see_its_neighbours(tiny, tokens, backend):
    model = tiny(attention_backend=backend)
    isolated = {"document_ids": DOCUMENT_IDS, "positions": POSITIONS}
    before, after = logits(model, tokens, **isolated), logits(model, changed(tokens, 3), **isolated)
    assert torch.isfinite(before).all()
    assert torch.equal(before[:, 7:], after[:, 7:])
    assert not torch.equal(before[:, 3:7], after[:, 3:7])
    joined, joined_after = logits(model, tokens), logits(model, changed(tokens, 3))
    assert (joined != joined_after).any(-1)[:, 3:].all()


@both_backends
def test_positions_of_documents_matter_by_distance_only(tiny, tokens, backend):
    """Rotary scores depend on distances, so restarting positions changes isolated documents by rounding alone."""
    model = tiny(attention_backend=backend)
    restarted = logits(model, tokens, document_ids=DOCUMENT_IDS, positions=POSITIONS)
    counted_on = logits(model, tokens, document_ids=DOCUMENT_IDS)
    torch.testing.assert_close(restarted, counted_on, rtol=1e-4, atol=1e-4)


class SlotCache:
    """The smallest cache of the protocol: one tensor a layer, slot = position."""

    def __init__(self):
        self.layers = {}

    def reserve(self, positions):
        self.positions = positions
        return int(positions.max()) + 1

    def update(self, layer_index, k, v):
        slots = int(self.positions.max()) + 1
        rows = torch.arange(len(k))[:, None]
        result = []
        for name, new in (("k", k), ("v", v)):
            old = self.layers.get((layer_index, name), new[:, :0])
            grown = new.new_full((len(k), max(slots, old.shape[1]), *new.shape[2:]), 1e4)  # Would show if it were seen.
            grown[:, : old.shape[1]] = old
            grown[rows, self.positions] = new
            self.layers[layer_index, name] = grown
            result.append(grown[:, :slots])
        return result


@both_backends
@windows
@pytest.mark.parametrize("chunk", [1, 3, 7, 24])
def test_prefill_in_pieces_is_one_forward_pass(tiny, tokens, backend, window, chunk):
    model = tiny(attention_backend=backend, sliding_window=window)
    cache, pieces = SlotCache(), []
    for start in range(0, 24, chunk):
        positions = torch.arange(start, min(start + chunk, 24))[None]
        pieces.append(logits(model, tokens[:, start : start + chunk], positions=positions, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, 1), logits(model, tokens), rtol=1e-5, atol=1e-5)


@both_backends
@windows
def test_rows_of_different_lengths_share_a_cache(tiny, tokens, backend, window):
    """Prompts of 5 and 9 tokens, the first one padded; then each row goes on at its own position."""
    model = tiny(attention_backend=backend, sliding_window=window)
    cache = SlotCache()
    prompts = tokens[:, :9].clone()
    prompts[0, 5:] = 60  # Padding.
    first = logits(model, prompts, positions=torch.arange(9)[None], cache=cache)
    lengths = torch.tensor([5, 9])
    ends = [first[row, length - 1] for row, length in enumerate(lengths)]
    for offset in range(4):
        new = tokens[torch.arange(2), lengths + offset][:, None]
        ends += list(logits(model, new, positions=(lengths + offset)[:, None], cache=cache)[:, 0])
    for index, end in enumerate(ends):
        row, length = index % 2, lengths[index % 2] + index // 2
        alone = logits(model, tokens[row : row + 1, :length])[0, -1]
        torch.testing.assert_close(end, alone, rtol=1e-5, atol=1e-5)


def test_cache_and_documents_exclude_each_other(tiny, tokens):
    with pytest.raises(ValueError, match="give either cache or document_ids"):
        tiny()(tokens, document_ids=DOCUMENT_IDS, cache=SlotCache())

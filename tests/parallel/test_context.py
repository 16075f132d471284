"""Ranks that share the sequence compute what one process computes of the whole rows.

Rows of 24 tokens on 2 and 4 ranks: chunks of 6 and of 3. Weights are large, so that attention is far from uniform. In
float64 all but rounding shows.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from megaxf.engine import TorchBatch
from megaxf.models.attention import causal_mask
from megaxf.models.initialize import initialize
from megaxf.models.llama import Config, Model
from megaxf.parallel import context
from megaxf.parallel.context import apply_context, own_columns, own_places, own_views
from megaxf.parallel.mesh import Axis, build_mesh

SEQUENCE = 24
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 33,
    "intermediate_size": 45,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
CASES = {
    "grouped heads": {},
    "one kv head, norms, biases": {"num_key_value_heads": 1, "qk_norm": True, "attention_bias": True},
    "window within a chunk": {"sliding_window": 2},
    "window over chunks": {"sliding_window": 7},
    "window wider than the row": {"sliding_window": 40},
    "documents": {"documents": True},
    "documents and window": {"documents": True, "sliding_window": 5},
    "reference backend": {"backend": "reference"},
    "reference backend, documents": {"backend": "reference", "documents": True},
    "dropout": {"dropout": 0.3},
    "selective recomputation": {"recompute": "selective", "dropout": 0.3},
    "full recomputation": {"recompute": "full", "dropout": 0.3},
}


@functools.cache
def context_axis():
    """All ranks as one context axis; groups stay for the life of a process, so it is made once."""
    return build_mesh({"context": dist.get_world_size()}).axis("context")


def rows(documents=False):
    """Two rows of random tokens; with documents of random lengths, of one token too, that differ by row."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(61, (2, SEQUENCE + 1), generator=generator)
    labels = ids[:, 1:].clone()
    labels[1, 3:11] = -100
    batch = TorchBatch(ids[:, :-1], labels, samples=torch.tensor([70, 3]))
    if not documents:
        return batch
    starts = torch.rand(2, SEQUENCE, generator=generator) < 0.3
    starts[0, 7:9] = True
    document_ids, places = starts.cumsum(1), torch.arange(SEQUENCE)
    positions = places - torch.where(starts, places, 0).cummax(1).values
    return batch._replace(document_ids=document_ids, positions=positions)


def build(backend="sdpa", recompute="none", dropout=0.0, dtype=torch.float64, **changes):
    config = Config(**(SHAPE | changes))
    model = Model(config, attention_backend=backend, recompute=recompute, dropout=dropout, seed=4, dtype=dtype)
    initialize(model, 7)
    return model


def evaluate(model, batch):
    """(summed loss, hidden states, gradients by name)"""
    hidden = model(batch.tokens, document_ids=batch.document_ids, positions=batch.positions, samples=batch.samples)
    loss = F.cross_entropy(model.logits(hidden).flatten(0, 1), batch.labels.flatten(), reduction="sum")
    loss.backward()
    return loss.item(), hidden.detach(), {name: p.grad for name, p in model.named_parameters()}


def shared_rows(case, compiled=False):
    """The same of this rank's columns, loss and gradients summed over the ranks."""
    settings = dict(case)
    axis, batch = context_axis(), rows(settings.pop("documents", False))
    model = build(**settings)
    apply_context(model, axis)
    if compiled:
        for layer in model.layers:
            layer.compile()
    loss, hidden, gradients = evaluate(model, own_columns(batch, axis))
    total = torch.tensor(loss, dtype=torch.float64)
    for tensor in (total, *gradients.values()):
        dist.all_reduce(tensor)
    return total.item(), hidden, gradients


def whole_rows(case):
    settings = dict(case)
    batch = rows(settings.pop("documents", False))
    return evaluate(build(**settings), batch)


def assert_equal_to_whole(per_rank, whole, tolerance=1e-12):
    loss, hidden, gradients = whole
    for rank, (own_loss, own_hidden, own_gradients) in enumerate(per_rank):
        places = own_places(own_hidden.shape[1], axis=fake_axis(rank, len(per_rank)))
        assert own_loss == pytest.approx(loss, rel=tolerance)
        assert (own_hidden - hidden[:, places]).norm() <= tolerance * hidden.norm()
        for name, gradient in own_gradients.items():
            assert (gradient - gradients[name]).norm() <= tolerance * gradients[name].norm(), name


def fake_axis(rank, size):
    return Axis("context", rank, tuple(range(size)), None)


@pytest.mark.parametrize(("ranks", "case"), [*((2, case) for case in CASES), (4, "documents"), (4, "dropout")])
def test_equal_to_one_process(run_on, ranks, case):
    assert_equal_to_whole(run_on(ranks, shared_rows, CASES[case]), whole_rows(CASES[case]))


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_equal_to_one_process_when_compiled(run_on, recompute):
    case = {"recompute": recompute, "documents": True}
    # The compiler computes norms and rotations, which are in fp32, in another order.
    assert_equal_to_whole(run_on(2, shared_rows, case, True, timeout=300), whole_rows(case), 1e-6)


def test_bf16_is_as_near_to_fp32_as_one_process(run_on):
    """The gathered gradients are rounded once more for each rank: no further than twice from fp32."""
    exact, alone = whole_rows({}), whole_rows({"dtype": torch.bfloat16})
    for _, _, gradients in run_on(4, shared_rows, {"dtype": torch.bfloat16}):
        for name, gradient in gradients.items():
            distances = [(g.float() - exact[2][name]).norm() for g in (gradient, alone[2][name])]
            assert distances[0] < 2 * distances[1], name


# Faults that the tests above have to see: each takes the place of a function or constant of the module.


def row_order_is_rank_order(shares):
    return shares.movedim(0, 2).flatten(2, 3)


def shares_in_rank_order(row, ranks):
    return row.unflatten(2, (ranks, -1)).movedim(2, 0).contiguous()


def places_from_zero(seq, *, axis, device=None):
    return torch.arange(seq, device=device)


def gradient_of_own_part(ctx, gradient):
    return context._to_shares(gradient, ctx.axis.size)[ctx.axis.rank], None


def mean_of_parts(ctx, gradient):
    summed, _ = right_backward(ctx, gradient)
    return summed / ctx.axis.size, None


def views_without_documents(seq, *, document_ids=None, **others):
    return right_views(seq, **others)


right_backward, right_views = context._Gather.backward, own_views
FAULTS = {
    "keys in the order of the ranks": (context, "_to_row", row_order_is_rank_order),
    "gradients in the order of the ranks": (context, "_to_shares", shares_in_rank_order),
    "rotary positions from zero on every rank": (context, "own_places", places_from_zero),
    "no sum of the gradients of keys": (context._Gather, "backward", staticmethod(gradient_of_own_part)),
    "mean of the gradients of keys": (context._Gather, "backward", staticmethod(mean_of_parts)),
    "no document mask": (context, "own_views", views_without_documents),
}


def with_fault(fault, case):
    """`shared_rows` of a model that is built with the fault, from right columns."""
    place, name, wrong = FAULTS[fault]
    right = getattr(place, name)
    columns = own_columns(rows(case.get("documents", False)), context_axis())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, staticmethod(right) if isinstance(wrong, staticmethod) else right)
        patch.setattr(place, name, wrong)
        patch.setitem(globals(), "own_columns", lambda batch, axis: columns)
        return shared_rows(case)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(run_on, fault):
    case = {"documents": True} if "document" in fault else {}
    with pytest.raises(AssertionError):
        assert_equal_to_whole(run_on(2, with_fault, fault, case), whole_rows(case), tolerance=1e-3)


def test_every_rank_has_the_same_work_and_no_place_twice():
    for ranks in (2, 3, 4):
        places = [own_places(4, axis=fake_axis(rank, ranks)) for rank in range(ranks)]
        assert sorted(torch.cat(places).tolist()) == list(range(4 * ranks))
        assert len({int(p.sum()) for p in places}) == 1  # a query's place is the number of keys before it
    assert own_places(4, axis=fake_axis(0, 2)).tolist() == [0, 1, 6, 7]
    assert own_places(4, axis=fake_axis(1, 2)).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("window", [None, 1, 3, 4, 11, 12, 40])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_views_are_rows_of_the_whole_mask(window, documents, ranks):
    seq = 12 // ranks
    document_ids = torch.tensor([[0] * 5 + [1] + [2] * 6, [3] * 12]) if documents else None
    expected = causal_mask(12, window=window, document_ids=document_ids)
    expected = torch.ones(12, 12).tril().bool()[None, None] if expected is None else expected
    for rank in range(ranks):
        axis = fake_axis(rank, ranks)
        views = own_views(seq, axis=axis, window=window, document_ids=document_ids)
        for view, places in zip(views, own_places(seq, axis=axis).chunk(2), strict=True):
            seen = expected[:, :, places]
            assert not seen[..., : view.first].any() and not seen[..., view.last :].any()
            own = torch.ones(len(places), view.last).tril(view.last - len(places)).bool()[None, None]
            assert view.mask is not None or view.first == 0
            assert torch.equal(seen[..., view.first : view.last], own if view.mask is None else view.mask)


def test_causal_rows_need_no_mask_and_a_window_limits_what_is_read():
    axis = fake_axis(1, 2)
    assert own_views(6, axis=axis) == ((0, 6, None), (0, 9, None))
    assert [view[:2] for view in own_views(6, axis=axis, window=2)] == [(2, 6), (5, 9)]


def test_columns():
    batch = rows(documents=True)
    own = own_columns(batch, fake_axis(1, 2))
    places = [*range(6, 12), *range(12, 18)]
    for name in ("tokens", "labels", "positions"):
        assert torch.equal(getattr(own, name), getattr(batch, name)[:, places])
    assert own.document_ids is batch.document_ids and own.samples is batch.samples
    assert own_columns(rows(), fake_axis(1, 2)).positions is None
    assert own_columns(batch, fake_axis(0, 1)) is batch
    with pytest.raises(ValueError, match="a row of 24 tokens cannot be cut into 2 chunks for each of 5 context ranks"):
        own_columns(batch, fake_axis(0, 5))

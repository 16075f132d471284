"""The boxes of all ranks make up the whole tensor, each element once for each copy, without what fills shares up."""

import itertools
import math

import pytest
import torch

from megaxf.parallel import boxes
from megaxf.parallel.boxes import flat_boxes, share_pieces
from megaxf.parallel.cut import Cut
from megaxf.parallel.mesh import Axis


@pytest.mark.parametrize("shape", [(7,), (5, 3), (3, 4, 5), (4, 1, 3)])
def test_boxes_of_a_range_are_its_elements_in_order(shape):
    whole = torch.arange(math.prod(shape))
    for start, stop in itertools.combinations(range(len(whole) + 1), 2):
        found = list(flat_boxes(shape, start, stop))
        assert len(found) <= 2 * len(shape) - 1
        views = [whole.view(shape)[tuple(slice(at, at + size) for at, size in zip(*box, strict=True))] for box in found]
        assert torch.equal(torch.cat([view.flatten() for view in views]), whole[start:stop])
    assert list(flat_boxes(shape, 2, 2)) == []


CUTS = {
    "rows, filled up": ((7, 3), Cut(0, 4, 2)),
    "rows, the last share empty": ((6, 3), Cut(0, 4, 2)),
    "columns": ((5, 8), Cut(1, 4, 2)),
    "heads on two ranks each": ((6, 5), Cut(0, 2, 3)),
    "one head on all": ((6, 5), Cut(0, 1, 6)),
    "not cut": ((9,), Cut()),
}


def all_pieces(shape, cut, ranges):
    """The pieces of 4 tensor-parallel ranks: "a" in so many padded ranges of the flattened share, "b" as replicas."""
    whole = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
    for rank, other in itertools.product(range(4), range(ranges)):
        axis = Axis("tensor", rank, (0, 1, 2, 3), None)
        share = cut.take(whole, axis).flatten()
        size = -(-len(share) // ranges)
        part = torch.nn.functional.pad(share, (0, size * ranges - len(share)), value=-1.0)[other * size :][:size]
        yield from share_pieces("a", whole.shape, cut, axis, other * size, {"master": part})
        yield from share_pieces("b", whole.shape, cut, axis, 0, {"master": share}, Axis("x", other, (0, 1, 2), None))


@pytest.mark.parametrize("split", [1, 1000])
@pytest.mark.parametrize("case", CUTS)
def test_pieces_make_up_the_whole(monkeypatch, case, split):
    """Read by all: each element as often as there are copies. Written: each once, in rows or by one copy."""
    monkeypatch.setattr(boxes, "SPLIT", split)
    shape, cut = CUTS[case]
    copies = 4 // cut.parts
    expected = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
    read, written = ({name: torch.zeros(shape) for name in "ab"} for _ in range(2))
    for piece in all_pieces(shape, cut, 3):
        assert piece.copies == (copies if piece.name == "a" else 3 * copies) and 0 <= piece.copy < piece.copies
        assert torch.equal(piece.box_in(expected), piece.values)
        piece.box_in(read[piece.name]).add_(1)
        if own := piece.own():
            assert torch.equal(own.box_in(expected), own.values)
            own.box_in(written[piece.name]).add_(1)
    assert torch.equal(read["a"], torch.full(shape, float(copies)))
    assert torch.equal(read["b"], torch.full(shape, 3.0 * copies))
    assert all(torch.equal(count, torch.ones(shape)) for count in written.values())


def test_large_copies_are_shared_out_evenly(monkeypatch):
    monkeypatch.setattr(boxes, "SPLIT", 1)
    axis = Axis("tensor", 0, (0,), None)
    share = {"master": torch.ones(40 * 3)}
    replicas = [Axis("replicas", rank, tuple(range(7)), None) for rank in range(7)]
    pieces = [next(share_pieces("a", torch.Size((40, 3)), Cut(), axis, 0, share, replica)) for replica in replicas]
    assert sorted(len(piece.own().values) for piece in pieces) == [5, 5, 6, 6, 6, 6, 6]

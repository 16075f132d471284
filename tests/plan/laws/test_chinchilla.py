"""Against tables A4 and A9 of arXiv 2203.15556."""

import pytest

from megaxf.plan.laws.chinchilla import SHAPES, ChinchillaShape, nearest
from tests.plan.digits import Printed, printed

PUBLISHED = """
44 57 74 90 106 117 140 163 175 196 217 251 278 306 425 489 509 552 587 632 664 724 816 893 1018 1143 1266 1424 1429
1593 1609 1731 1794 2007 2283 2298 2639 2980 3530 3802 4084 4516 6796 9293 11452 12295 12569 13735 14940 16183
"""
"""Millions of parameters of the 50 models."""

COUNTED = """
43.6 57.2 73.7 89.7 105.7 116.6 139.6 162.6 174.8 195.7 216.5 250.9 278.1 305.4 424.3 488.2 509.0 552.1 586.3 631.9
663.6 723.9 815.9 892.3 1017.5 1142.8 1265.1 1423.8 1428.7 1592.3 1608.5 1730.0 1793.2 2006.0 2282.0 2297.0 2637.8
2978.6 3529.4 3801.3 4082.6 4514.9 6794.1 9291.4 11449.7 12293.1 12566.8 13733.1 14938.0 16180.8
"""
"""The formula's, by hand."""


def test_parameters_of_the_trained_shapes():
    """Within 0.8 % of the published ones for all 50, within 0.2 % from 251M up."""
    published = [float(word) * 1e6 for word in PUBLISHED.split()]
    assert len(SHAPES) == len(published) == 50
    assert tuple(shape.parameters / 1e6 for shape in SHAPES) == printed(*COUNTED.split())
    for shape, size in zip(SHAPES, published, strict=True):
        assert shape.parameters == pytest.approx(size, rel=0.002 if size >= 251e6 else 0.009), shape
    assert nearest(7e10) == SHAPES[-1] and nearest(300e6).parameters / 1e6 == Printed("305.4")


@pytest.mark.parametrize(
    ("hidden", "head_dim", "heads", "layers", "flops", "without", "with_both", "published"),
    [
        (640, 64, 10, 10, 1433193676800, "1.0264", "1.5819", "1.03"),
        (1024, 64, 16, 20, 4940554567680, "1.1019", "1.3165", "1.10"),
        (1280, 128, 10, 24, 8360086732800, "1.0838", "1.2322", "1.08"),
        (1792, 128, 14, 26, 16079602581504, "1.0447", "1.1451", "1.04"),
        (2048, 128, 16, 28, 21831050330112, "1.0335", "1.1158", "1.03"),
        (3584, 128, 28, 40, 85839619031040, "0.9944", "1.0282", "0.99"),
    ],
)
def test_flops_of_table_a4(hidden, head_dim, heads, layers, flops, without, with_both, published):
    shape = ChinchillaShape(hidden, 4 * hidden, head_dim, heads, layers)
    assert shape in SHAPES
    assert shape.flops_per_sequence(with_vocabulary=True) == flops
    assert shape.flops_ratio == Printed(without) and shape.flops_ratio == Printed(published)
    assert flops / (6 * shape.parameters * 2048) == Printed(with_both)


def test_flops_of_chinchilla_and_gopher():
    chinchilla, gopher = ChinchillaShape(8192, 32768, 128, 64, 80), ChinchillaShape(16384, 65536, 128, 128, 80)
    per_token = [shape.flops_per_sequence(with_vocabulary=True) / 2048 for shape in (chinchilla, gopher)]
    assert tuple(per_token) == printed("4.05893e11", "1.58488e12")
    assert per_token[0] * 1.4e12 == Printed("5.6825e23")
    assert chinchilla.flops_per_sequence(with_vocabulary=False) / 2048 * 1.4e12 == Printed("5.6385e23")
    assert per_token[1] * 300e9 == Printed("4.7546e23")

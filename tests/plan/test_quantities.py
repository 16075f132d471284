import pytest

from megaxf.plan.quantities import dollars, number, quantity


def test_quantity():
    assert [quantity(n) for n in (7, 999.4, 1000, 18_340, 1.5e6, 4.05e11, 3e13)] == [
        "7.00", "999", "1.00k", "18.3k", "1.50M", "405B", "30.0T",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7b", 7e9),
        ("1.5T", 1.5e12),
        ("300 M", 3e8),
        ("5.76e23", 5.76e23),
        ("1,000", 1000),
        ("12,345,678.5", 12_345_678.5),
        ("1_000", 1000),
        ("2g", 2e9),
        (".5k", 500),
    ],
)
def test_number(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "7x", "b", "-1", "1e", "nan", "1.2.3", "7bb", "1,5T", "1,0000", "1000,000", ",5", "1,"]
)
def test_not_a_number(text):
    with pytest.raises(ValueError, match="is not a number such as 7b"):
        number(text)


def test_dollars():
    assert [dollars(text) for text in ("$2M", "150k", "$1,000", " $ 3.5 ")] == [2e6, 150e3, 1000, 3.5]
    with pytest.raises(ValueError, match="is not a number"):
        dollars("2M$")

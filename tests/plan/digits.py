"""Comparison with printed numbers, to the digits that are printed."""

from decimal import Decimal


class Printed:
    """A number as a page prints it ("8.0582e7"): equal to all that rounds to it."""

    def __init__(self, text: str):
        self.text = text
        number = Decimal(text)
        self.value, self.half = float(number), 0.5 * 10.0 ** int(number.as_tuple().exponent)

    def __eq__(self, other):
        return abs(other - self.value) <= self.half * (1 + 1e-6)

    def __repr__(self):
        return self.text


def printed(*texts):
    """A tuple of printed numbers."""
    return tuple(Printed(text) for text in texts)


def words(block, columns):
    """The rows of a block of text; those with another number of columns are a mistake in the block."""
    rows = [tuple(line.split()) for line in block.strip().splitlines()]
    assert all(len(row) == columns for row in rows)
    return rows

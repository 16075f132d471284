"""Numbers as people write and read them: 70B parameters, 1.4T tokens, 5.76e23 FLOPs."""

from __future__ import annotations

import re

_THOUSANDS = {"": 0, "k": 1, "M": 2, "B": 3, "T": 4}
_FORM = re.compile(r"([+]?(?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([kKmMbBgGtT]?)")


def quantity(number: float) -> str:
    """Three digits and a letter for the thousands: 18.3k, 1.2M, 405B."""
    for letter in ("", "k", "M", "B"):
        if abs(number) < 999.5:
            return f"{number:#.3g}".rstrip(".") + letter
        number /= 1000
    return f"{number:#.3g}".rstrip(".") + "T"


def number(text: str) -> float:
    """The number of 7b, 1.5T, 300M, 5.76e23 or 1,000; letters in either case, G as B.

    A comma stands before three digits: 1,5T may be 1.5T or a slip. Raises ValueError for that and what is no number.
    """
    match = _FORM.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a number such as 7b, 1.5T or 5.76e23")
    letter = match[2].upper().replace("G", "B").replace("K", "k")
    return float(match[1].replace(",", "")) * 1000.0 ** _THOUSANDS[letter]


def dollars(text: str) -> float:
    """The number of $2M, 150k or $1,000. Raises ValueError for others."""
    return number(text.strip().removeprefix("$"))

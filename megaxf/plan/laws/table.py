"""Published scaling laws by name, with source, what they count as N, and how sure they are.

They disagree by more than a factor of two in N at one budget; whoever quotes one says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import exp
from typing import Protocol

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.kaplan import PF_DAY
from megaxf.plan.laws.spread import EPOCH_SPREAD
from megaxf.plan.laws.surface import PowerLaw, Surface

DEFAULT = "epoch"
"""The one surface that agrees with approaches 1 and 2 and with how Chinchilla was built."""


class Varying(Protocol):
    """How the constants of a law vary."""

    def sample(self) -> Surface:
        """Many laws as one, with arrays of constants."""


@dataclass(frozen=True)
class Law:
    """A named set of constants."""

    name: str
    form: Surface | PowerLaw
    source: str
    counts: str
    """What N is: "total" parameters, "non-embedding" ones, or in words."""
    published: str
    """The interval that the source gives, in its words."""
    spread: Varying | None = None
    """How the constants vary, where that is known: the interval of any prediction follows from it."""


_CHINCHILLA = "Hoffmann et al. 2022, arXiv 2203.15556"
_NONE = "none published"

_ROWS = (
    Law(
        "epoch",
        Surface(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
        "Besiroglu et al. 2024, arXiv 2404.10102: approach 3 on 240 points of Hoffmann's figure 4",
        "total",
        "a 0.513 (standard error 0.020); 95 %: E 1.769-1.871, alpha 0.317-0.373, beta 0.331-0.415",
        EPOCH_SPREAD,
    ),
    Law(
        "epoch_exact",
        Surface(exp(0.59730673), exp(6.16924489), exp(7.67015606), 0.34731041, 0.3671724),
        "the exact optimum of Besiroglu's objective (arXiv 2404.10102) on the same 240 points",
        "total",
        "that of epoch",
        EPOCH_SPREAD,
    ),
    Law(
        "hoffmann_unrounded",
        Surface(1.6933737, 406.40102, 410.72283, 0.33917084, 0.2849083),
        f"{_CHINCHILLA}, approach 3, from the paper's TeX source",
        "total",
        "a 0.454-0.455 (10th-90th percentile; the centre lies outside: the fit had stopped early)",
    ),
    Law(
        "hoffmann_rounded",
        Surface(1.69, 406.4, 410.7, 0.34, 0.28),
        f"{_CHINCHILLA}, approach 3, as printed",
        "total",
        "a 0.454-0.455 (10th-90th percentile; rounding moved a to 0.4516)",
    ),
    Law(
        "sardana_mixed",
        Surface(1.69, 406.4, 410.7, 0.336, 0.283),
        "the constants that give the examples of Sardana et al. 2023, arXiv 2401.00448",
        "total",
        _NONE,
    ),
    Law(
        "muennighoff",
        Surface(exp(0.6254804), exp(6.255414), exp(7.3049974), 0.3526596, 0.3526596),
        "Muennighoff et al. 2023, arXiv 2305.16264: C4, alpha and beta tied",
        "total",
        _NONE,
    ),
    Law(
        "hoffmann_approach1",
        PowerLaw(0.09915893, 0.49809869),
        f"{_CHINCHILLA}, approach 1: a power law through its table 3",
        "total",
        "a 0.50 (0.488-0.502, 10th-90th percentile)",
    ),
    Law(
        "hoffmann_approach2",
        PowerLaw(0.14487705, 0.48994161),
        f"{_CHINCHILLA}, approach 2: a power law through its table A3",
        "total",
        "a 0.49 (0.462-0.534, 10th-90th percentile)",
    ),
    Law(
        "hoffmann_approach3_table",
        PowerLaw(0.53511666, 0.45862778),
        f"{_CHINCHILLA}, approach 3: a power law through its table A3, which neither set of constants gives",
        "total",
        "a 0.454-0.455 (10th-90th percentile)",
    ),
    Law(
        "twenty_to_one",
        PowerLaw.of_ratio(20),
        "the rule of 20 tokens a parameter; Chinchilla-70B was trained so (arXiv 2203.15556)",
        "total",
        _NONE,
    ),
    Law(
        "llama3",
        PowerLaw.of_tokens(0.29, 0.53),
        "Llama 3, arXiv 2407.21783: D* = 0.29 C^0.53 (its own 402B at 3.8e25 needs an exponent of 0.5378)",
        "total",
        _NONE,
    ),
    Law(
        "porian",
        PowerLaw(0.118926, 0.496895),
        "Porian et al. 2024, arXiv 2406.19146: RefinedWeb, everything tuned for each size",
        "matrices with the head",
        "a 0.497 (0.491-0.505, 95 %)",
    ),
    Law(
        "deepseek",
        PowerLaw(0.1715 / 6, 0.5243),
        "DeepSeek LLM, arXiv 2401.02954: M* = 0.1715 C^0.5243, M FLOPs a token",
        "M / 6, M = 72 L d^2 + 12 L d s",
        "a 0.450-0.578 between corpora",
    ),
    Law(
        "minicpm",
        PowerLaw.of_ratio(192),
        "MiniCPM, arXiv 2404.06395: about 192 tokens a parameter",
        "non-embedding",
        _NONE,
    ),
    Law(
        "kaplan",
        PowerLaw(1.3e9 / PF_DAY**0.73, 0.73),
        "Kaplan et al. 2020, arXiv 2001.08361: N* = 1.3e9 C^0.73, C in PF-days; superseded",
        "non-embedding",
        _NONE,
    ),
)

LAWS = {row.name: row for row in _ROWS}


def law(name: str) -> Law:
    """The law of a name. Raises PlanError with the near names."""
    if name in LAWS:
        return LAWS[name]
    close = get_close_matches(name, LAWS, n=1, cutoff=0.4)
    advice = f"did you mean {close[0]}?" if close else "they are"
    raise PlanError(f"{name!r} is not a law; {advice} (all: {', '.join(LAWS)})")


def surface(name: str) -> Surface:
    """The loss surface of a name. Raises PlanError where that law gives no loss."""
    form = law(name).form
    if isinstance(form, Surface):
        return form
    surfaces = ", ".join(row.name for row in _ROWS if isinstance(row.form, Surface))
    raise PlanError(f"the law {name} says how to divide compute and gives no loss; use one of {surfaces}")

"""How many cases may turn from pass to fail with nothing changed?

A repeated run of one server does not always give the same verdicts, even at temperature 0: batches of another shape
sum in another order. From consecutive runs of the control we count how often a case that passed failed in the next run:
E of T. With Jeffreys' prior the rate is Beta(E + 1/2, T - E + 1/2), so the number of failures among n cases that passed
is beta-binomial. `most_by_chance` is the least number that this does not exceed with 95 %. It tightens with history:
with 40 cases and no flip ever seen it is 2 after two runs, 1 after three, 0 after eleven. Cases are taken as alike; a
set with few unsteady cases spreads their flips over all.

With a single run of the control there is no rate. If nothing changed, turns for the worse and for the better are
equally likely (the runs are exchangeable), so the exact sign test holds: 5 worse and none better is a change, 4 is not.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import comb, exp, lgamma

Outcomes = Mapping[str, bool]  # case -> passed
CONFIDENCE = 0.95


def turned(before: Outcomes, after: Outcomes, *, to: bool) -> list[str]:
    """Cases of both runs that had the other outcome before and have `to` after, sorted."""
    return sorted(case for case, passed in after.items() if case in before and passed is to and before[case] is not to)


def flips(history: Sequence[Outcomes]) -> tuple[int, int]:
    """(cases that passed and failed in the next run, cases that passed and were in the next run), over a history."""
    steps = list(pairwise(history))
    seen = sum(1 for before, after in steps for case, passed in before.items() if passed and case in after)
    return sum(len(turned(before, after, to=False)) for before, after in steps), seen


def most_by_chance(flipped: int, seen: int, passing: int) -> int:
    """Upper 95 % limit of failures among `passing` cases, from `flipped` failures of `seen` before."""
    a, b = flipped + 0.5, seen - flipped + 0.5
    total = 0.0
    for k in range(passing + 1):
        total += comb(passing, k) * exp(_log_beta(k + a, passing - k + b) - _log_beta(a, b))
        if total >= CONFIDENCE:
            return k
    return passing


def is_change(worse: int, better: int) -> bool:
    """One-sided exact sign test at 5 %: are so many turns for the worse too many for chance?"""
    n = worse + better
    return worse > 0 and sum(comb(n, k) for k in range(worse, n + 1)) / 2**n <= 1 - CONFIDENCE


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)

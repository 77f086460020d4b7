"""Percentiles of latencies, how sure they are, and the verdict on an objective.

A percentile is the nearest rank over all requests: of n sorted values the one of rank ceil(q n). A failed request is
+inf, so a server that refuses requests never looks fast.

Bounds need no assumption about the shape of the latencies. The number of values at or below the true q-quantile is
Binomial(n, q), so (David and Nagaraja, Order Statistics, 2003, section 7.1) the value of rank r is

    an upper bound with confidence P(Bin(n, q) <= r - 1) = I_{1-q}(n - r + 1, r)
    a lower bound with confidence P(Bin(n, q) >= r)      = I_q(r, n - r + 1)

where I is the regularised incomplete beta function. Where even the largest value is no upper bound, there is none
(None): that is so below n = 59 for p95 and below n = 299 for p99 at 95 %. None is "not known", +inf is "a failure".

Requests of one run are not independent: one long prompt delays everyone behind it. tasks/stats/dependence.py estimates
how many independent values the sample is worth, m <= n, and the ranks are those of a sample of m, stretched to n: r
values of n stand for r m / n of m (the real-valued beta of Korn and Graubard, Survey Methodology 24, 1998). Both
directions round away from the estimate, so m < n only ever widens, and m = n gives the exact ranks back.

A verdict uses one-sided 95 % bounds: PASS if the upper one keeps the objective, FAIL if the lower one breaks it, else
INCONCLUSIVE. Intervals for people are two-sided 95 %: 97.5 % on each side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betainc

CONFIDENCE = 0.95  # of a verdict's one bound, and of the interval shown to people
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Percentile:
    """`estimate`, `lower`, `upper` in the values' unit; +inf is a failure, None is not known at this n."""

    q: float
    estimate: float | None
    lower: float | None
    upper: float | None
    n: int
    failed: int
    effective_n: float


@dataclass(frozen=True)
class Judged:
    """A verdict, the percentile with its one-sided bounds, and why in words."""

    verdict: Verdict
    percentile: Percentile
    reason: str


def nearest_rank(n: int, q: float) -> int:
    """Rank (1 to n) of the q-quantile of n values; the epsilon keeps 0.07 * 100 from becoming rank 8."""
    return min(n, max(1, math.ceil(q * n - 1e-9)))


def ranks(n: int, q: float, *, confidence: float, effective_n: float | None = None) -> tuple[int | None, int | None]:
    """Ranks of the lower and the upper bound, each one-sided at `confidence`. None where no value is a bound."""
    if n == 0:
        return None, None
    m = min(float(n), max(1.0, effective_n if effective_n is not None else n))
    rank = np.arange(1, n + 1)
    reached = rank * m / n
    below = (rank - 1) * m / n
    is_upper = betainc(m - reached + 1, reached, 1 - q) >= confidence
    is_lower = betainc(below + 1, m - below, q) >= confidence
    lower = int(rank[is_lower][-1]) if is_lower.any() else None
    upper = int(rank[is_upper][0]) if is_upper.any() else None
    return lower, upper


def least_n(q: float, *, confidence: float = CONFIDENCE) -> int:
    """The fewest independent values whose largest is an upper bound of the q-quantile: 59 for 0.95, 299 for 0.99."""
    return math.ceil(math.log(1 - confidence) / math.log(q))


def percentile(
    values: Sequence[float], q: float, *, effective_n: float | None = None, one_sided: bool = False
) -> Percentile:
    """The q-quantile with 95 % bounds. Raises ValueError for NaN or for q outside (0, 1)."""
    if not 0 < q < 1:
        raise ValueError(f"q: must lie between 0 and 1, got {q}")
    if any(math.isnan(value) for value in values):
        raise ValueError("values: hold NaN; a value that cannot be computed is left out, a failure is +inf")
    ordered, n = sorted(values), len(values)
    confidence = CONFIDENCE if one_sided else (1 + CONFIDENCE) / 2
    lower, upper = ranks(n, q, confidence=confidence, effective_n=effective_n)
    return Percentile(
        q=q,
        estimate=ordered[nearest_rank(n, q) - 1] if n else None,
        lower=ordered[lower - 1] if lower else None,
        upper=ordered[upper - 1] if upper else None,
        n=n,
        failed=sum(math.isinf(value) for value in values),
        effective_n=min(float(n), effective_n) if effective_n is not None else float(n),
    )


def judge(
    values: Sequence[float], *, objective: float, fraction: float, effective_n: float | None = None, unit: str = ""
) -> Judged:
    """Does the `fraction`-quantile keep `objective` (lower is better)? Failures are +inf; `unit` is for the words."""
    unit = unit and f" {unit}"
    found = percentile(values, fraction, effective_n=effective_n, one_sided=True)
    if found.upper is not None and found.upper <= objective:
        return Judged("PASS", found, f"the upper bound {found.upper:,.4g}{unit} keeps {objective:,g}{unit}")
    if found.lower is not None and found.lower > objective:
        lower = f"{found.failed} of {found.n} failed" if math.isinf(found.lower) else f"{found.lower:,.4g}{unit}"
        return Judged("FAIL", found, f"the lower bound ({lower}) breaks {objective:,g}{unit}")
    return Judged("INCONCLUSIVE", found, _why_inconclusive(found, f"{objective:,g}{unit}"))


def _why_inconclusive(found: Percentile, objective: str) -> str:
    if found.n == 0:
        return "no values"
    need = least_n(found.q)
    if found.upper is None:
        return (
            f"effective n {found.effective_n:.0f} (of {found.n}) is too small: "
            f"a PASS of p{found.q * 100:g} needs at least {need}"
        )
    return f"the bounds lie on both sides of {objective}"

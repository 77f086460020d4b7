"""Does an arm differ from its control? The unit is the deployment: what differs between two deployments of one arm is
no effect of another arm, however many requests each of them served.

**Pairs.** Deployments alternate in mirrored order (control, arm, arm, control), and each neighbours' pair gives one
difference of logs, so an effect is a ratio. A machine that slowly gets warmer adds to one pair what it takes from the
next: it widens the interval and does not move the mean. The interval is Student's for the mean of the pairs (95 %,
two-sided). Where the mirrored order is broken the two samples are compared by Welch (Biometrika 34, 1947). There is no
bootstrap: over five deployments its A/A error is 13 %. Indicators that may be 0 (shares of failures, of passed cases)
are compared as differences, by the same t.

**Floor.** The 95 % limit of the mean of so many pairs if both of each were the control, from the control's own
deployments. An effect within it is never called one.

**Several hypotheses** are corrected by Holm (Scandinavian Journal of Statistics 6, 1979), over all that were declared.

**Outcome.** EQUIVALENT if the interval lies within the margin, the smallest effect worth having; else BETTER or WORSE
if the corrected p is below 5 % and the mean is beyond the floor; else INCONCLUSIVE, with how many more repeats would
settle it if mean and spread stayed as they are. An effect that is certain and too small to be worth having is
EQUIVALENT. `python -m bench.calibration` shows how often each is wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

ERROR = 0.05
LEAST_PAIRS = 4
MOST_REPEATS = 64  # more is no advice
Scale = Literal["ratio", "difference"]
Outcome = Literal["BETTER", "WORSE", "EQUIVALENT", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Effect:
    """Arm against control. `mean`, `lower`, `upper`: of logs (scale ratio) or in the indicator's unit (difference).

    `spread`: the standard deviation of one pair; `n`: pairs (Welch: of the smaller sample); `p`: two-sided.
    """

    scale: Scale
    method: Literal["paired", "welch"]
    mean: float
    lower: float
    upper: float
    spread: float
    n: int
    p: float

    @property
    def shown(self) -> tuple[float, float, float]:
        """Mean, lower and upper as people read them: ratios, or differences."""
        found = (self.mean, self.lower, self.upper)
        return found if self.scale == "difference" else (math.exp(found[0]), math.exp(found[1]), math.exp(found[2]))


@dataclass(frozen=True)
class Compared:
    """`more`: repeats of each arm that would settle it, None if MOST_REPEATS would not or nothing is left to settle."""

    outcome: Outcome
    effect: Effect
    p: float
    floor: float
    more: int | None
    reason: str


def paired(pairs: Sequence[tuple[float, float]], *, scale: Scale = "ratio", error: float = ERROR) -> Effect:
    """Of (control, arm) pairs, at least two. Raises ValueError for values that have no log, or too few pairs."""
    if len(pairs) < 2:
        raise ValueError(f"pairs: at least 2 are needed for an interval, got {len(pairs)}")
    control, arm = (_scaled([pair[i] for pair in pairs], scale) for i in (0, 1))
    return _student(arm - control, scale, error)


def _student(differences: "np.ndarray[tuple[int], np.dtype[np.float64]]", scale: Scale, error: float) -> Effect:
    n, mean = len(differences), float(differences.mean())
    spread = float(differences.std(ddof=1))
    half = float(stats.t.ppf(1 - error / 2, n - 1)) * spread / math.sqrt(n)
    p = _two_sided(mean, spread / math.sqrt(n), n - 1)
    return Effect(scale, "paired", mean, mean - half, mean + half, spread, n, p)


def welch(control: Sequence[float], arm: Sequence[float], *, scale: Scale = "ratio", error: float = ERROR) -> Effect:
    """Of deployments in no mirrored order, at least two of each. Raises ValueError as `paired` does."""
    if min(len(control), len(arm)) < 2:
        raise ValueError(f"deployments: at least 2 of each are needed, got {len(control)} and {len(arm)}")
    a, b = _scaled(control, scale), _scaled(arm, scale)
    va, vb = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    mean, deviation = float(b.mean() - a.mean()), math.sqrt(va + vb)
    terms = va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)
    freedom = (va + vb) ** 2 / terms if terms else len(a) + len(b) - 2
    half = float(stats.t.ppf(1 - error / 2, freedom)) * deviation
    n = min(len(a), len(b))
    p = _two_sided(mean, deviation, freedom)
    return Effect(scale, "welch", mean, mean - half, mean + half, deviation * math.sqrt(n), n, p)


def _two_sided(mean: float, deviation: float, freedom: float) -> float:
    if deviation == 0:  # alike to the last digit: counts, not times
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / deviation, freedom))


def _scaled(values: Sequence[float], scale: Scale) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    found = np.asarray(values, dtype=float)
    if not np.isfinite(found).all():
        raise ValueError(
            f"values: must be finite, got {list(values)}; compare the failure ratio where failures reach it"
        )
    if scale == "difference":
        return found
    if (found <= 0).any():
        raise ValueError(f"values: must be above 0 to have a ratio, got {list(values)}; compare their difference")
    return np.asarray(np.log(found))


def floor(control: Sequence[Sequence[float]], n: int, *, scale: Scale = "ratio") -> float:
    """The noise floor of the mean of n pairs, as `Effect.mean` is scaled.

    `control`: values of the control's deployments, in groups between which conditions may have changed (a plan's own,
    an earlier night's); the spread is pooled within groups. Raises ValueError if no group has two.
    """
    groups = [_scaled(group, scale) for group in control if len(group) > 1]
    if not groups:
        raise ValueError("control: no two deployments of the control under alike conditions: there is no noise floor")
    freedom = sum(len(group) - 1 for group in groups)
    pooled = math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom)
    return float(stats.t.ppf(1 - ERROR / 2, freedom)) * pooled * math.sqrt(2 / n)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for all of them being looked at, in the order given."""
    corrected, worst = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, ps[i] * (len(ps) - rank)))
        corrected[i] = worst
    return corrected


def judged(
    effect: Effect, p: float, floor: float, *, better: Literal["lower", "higher"], margin: float, error: float = ERROR
) -> Compared:
    """`p`: corrected. `margin`: the smallest effect worth having, as a share (0.05) or in the unit of a difference."""
    limit = math.log1p(margin) if effect.scale == "ratio" else margin
    most = max(abs(effect.lower), abs(effect.upper))
    more, reason = None, f"n = {effect.n} pairs, p = {p:.3g}"
    if effect.n < LEAST_PAIRS:
        more = LEAST_PAIRS - effect.n
        return Compared("INCONCLUSIVE", effect, p, floor, more, f"{effect.n} pairs, needed {LEAST_PAIRS}")
    if most <= limit:
        return Compared("EQUIVALENT", effect, p, floor, None, f"within the margin; {reason}")
    if p < error and abs(effect.mean) > floor:
        is_good = (effect.mean < 0) == (better == "lower")
        return Compared("BETTER" if is_good else "WORSE", effect, p, floor, None, reason)
    more = _more(effect, limit, floor, error)
    words = "within the noise floor" if p < error else "no difference shown, and none excluded"
    settled = f"{more} more repeats would settle it" if more else f"{MOST_REPEATS} repeats would not settle it"
    return Compared(
        "INCONCLUSIVE", effect, p, floor, more, f"{words}; {reason}; {settled}, with mean and spread as now"
    )


def _more(effect: Effect, limit: float, floor: float, error: float) -> int | None:
    """The fewest further repeats, in mirrored blocks, after which the interval leaves out 0 or fits the margin."""
    for n in range(effect.n + 2 - effect.n % 2, MOST_REPEATS + 1, 2):
        half = float(stats.t.ppf(1 - error / 2, n - 1)) * effect.spread / math.sqrt(n)
        beyond = max(half, floor * math.sqrt(effect.n / n))
        if abs(effect.mean) > beyond or abs(effect.mean) + half <= limit:
            return n - effect.n
    return None

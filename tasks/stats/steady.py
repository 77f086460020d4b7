"""Where does the warm-up of a series end, and does what follows stand still?

A series is one value per request in order of sending; a failure is +inf. Both questions are asked of batches longer
than the correlation time (tasks/stats/dependence.py), since what waits together moves together: a queue at load 0.8
that is perfectly steady wanders for a hundred requests on end, and a test for independent values calls that a change
nearly always.

Warm-up: a candidate, and whether it is one.
- The candidate is MSER-5's (White, Cobb and Spratt, WSC 2000): of batches of five, leave out the first d so that the
  standard error of the mean of the rest, S_d / sqrt(k - d), is least; d is at most half of them. It did best of the
  automatic rules compared by Hoad, Robinson and Davies (J. Operational Research Society 61, 2010).
- MSER alone always leaves something out, by preference an early burst of a queue that is already steady, and what is
  left then looks faster than the server is. So d counts only if the mean before it differs from the mean after it by
  more than chance: diff^2 > 3 log(k) V (1/d + 1/(k - d)), Schwarz's penalty for one change point (its place and two
  levels; Yao, Statistics and Probability Letters 6, 1988), V being the long-run variance of a batch after the cut.
- Ranks take the place of the values: a failure is then the largest value and no infinity, and one value of a minute
  weighs no more than one of a second. A first wave that is slow, or fails, is as plain in ranks.
- Drift is no warm-up: MSER would cut half of a slowly rising series, and leave the test below half of the rise. So a
  cut also needs that two levels, with the change in the first half, fit the series better than a straight line does.

Drift: the Theil-Sen slope of batch medians over time with Sen's interval (J. American Statistical Association 63,
1968), which is the Mann-Kendall test turned around: no shape is assumed, and single wild batches do not move it. At
most 20 batches of at least twice the correlation time. It drifts if the 99.99 % interval leaves out no change at all,
and the change over the window is at least MATTERS of its median. So a steady series is called drifting in at most 1 of
10,000 whatever MATTERS is, and in fewer with it (docs/statistics.md has the count on the sim's queue): 100 clean runs
of two tiers are 400 series, and raise no alarm in 96 of 100 such hundreds even if MATTERS never helped. The price is
that drift below MATTERS, and drift that the window is too short to show, are not told. MATTERS is ours: a tenth, about
the width of the interval of a median of a few hundred requests.

Batches whose median is a failure have no slope; how many fail is another rule's business. Fewer than LEAST_BATCHES
batches can show no trend at this confidence, so nothing is said about them: too short.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tasks.stats.dependence import correlation_time, ranks_of

Floats = NDArray[np.float64]
BATCH = 5  # of MSER-5; also the least of any batch here
LEAST_BATCHES = 8  # of 7 in perfect order by chance there are 2 in 7!, more than 1 in 10,000
MOST_BATCHES = 20
MATTERS = 0.1
ROUNDING = 1e-9  # of a sum of squares
Z = 3.8906  # of the normal distribution, two-sided 99.99 %


@dataclass(frozen=True)
class Trend:
    """Change of the median per minute as a share of the median of all, with its 99.99 % interval, over `minutes`."""

    per_minute: float
    lower: float
    upper: float
    minutes: float

    @property
    def is_growth(self) -> bool:
        """It gets slower, by what matters."""
        return self.lower > 0 and self.per_minute * self.minutes >= MATTERS

    @property
    def is_drift(self) -> bool:
        """It gets slower or faster, by what matters."""
        return self.is_growth or (self.upper < 0 and self.per_minute * self.minutes <= -MATTERS)


def warmup(values: Sequence[float]) -> int:
    """The index of the first value that counts, of a series in order of sending; 0 too if it is too short to tell."""
    batches = _means(ranks_of(values), BATCH)
    if len(batches) < 2 * LEAST_BATCHES:
        return 0
    cut = _mser(batches)
    return cut * BATCH if cut and _is_change(batches, cut) and _is_step(batches) else 0


def batch_length(values: Sequence[float]) -> int:
    """Requests per batch: twice the correlation time, which a trend of the series itself does not lengthen."""
    return max(BATCH, math.ceil(2 * correlation_time(_without_line(ranks_of(values)))))


def trend(values: Sequence[float], at_s: Sequence[float]) -> Trend | None:
    """Of values sent at these seconds, in order. None where there are too few batches to tell."""
    length = batch_length(values)
    count = min(MOST_BATCHES, len(values) // length)
    if count < LEAST_BATCHES:
        return None
    series, at = np.asarray(values, dtype=float), np.asarray(at_s, dtype=float)
    places = np.array_split(np.arange(len(series)), count)
    middle = [(float(np.median(at[place])), _median(series[place])) for place in places]
    finite = [(x, y) for x, y in middle if math.isfinite(y)]
    centre = _median(series)
    if len(finite) < LEAST_BATCHES or not math.isfinite(centre) or centre <= 0:
        return None
    slope, lower, upper = (60 * found / centre for found in _theil_sen(finite))
    return Trend(slope, lower, upper, float(at[-1] - at[0]) / 60)


def _theil_sen(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Median slope and Sen's interval at 99.99 %, per unit of x."""
    slopes = sorted((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 > x1)
    if not slopes:
        return 0.0, -math.inf, math.inf
    k, pairs = len(points), len(slopes)
    reach = Z * math.sqrt(k * (k - 1) * (2 * k + 5) / 18)
    low = max(0, math.floor((pairs - reach) / 2) - 1)
    return float(np.median(slopes)), slopes[low], slopes[pairs - 1 - low]


def _mser(batches: Floats) -> int:
    """How many batches MSER leaves out, at most half."""
    _, after = _squares(batches)
    left = len(batches) - np.arange(len(after))
    after[after < ROUNDING * after[0]] = 0  # of equal values: the first cut is the one
    return int(np.argmin(after / left**2))


def _squares(batches: Floats) -> tuple[Floats, Floats]:
    """Sums of squares around the mean before and after each cut, from none to half left out."""
    centred, k = batches - batches.mean(), len(batches)
    cuts = np.arange(k // 2 + 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (centred, centred**2))
    before = squares[cuts] - sums[cuts] ** 2 / np.maximum(cuts, 1)
    after = squares[-1] - squares[cuts] - (sums[-1] - sums[cuts]) ** 2 / (k - cuts)
    return np.asarray(before), np.asarray(after)


def _is_change(batches: Floats, cut: int) -> bool:
    """Do the batches before the cut differ from those after it by more than chance?"""
    before, after = batches[:cut], batches[cut:]
    variance = float(after.var(ddof=1)) * correlation_time(_without_line(after))
    difference = float(before.mean() - after.mean())
    k = len(batches)
    return difference**2 > 3 * math.log(k) * variance * (1 / cut + 1 / (k - cut))


def _is_step(batches: Floats) -> bool:
    """Do two levels, with the change in the first half, leave less than a straight line does?"""
    before, after = _squares(batches)
    return float((before + after).min()) < float((_without_line(batches) ** 2).sum())


def _means(values: Floats, length: int) -> Floats:
    """Of whole batches; what is left over at the end is left out."""
    count = len(values) // length
    return np.asarray(values[: count * length].reshape(count, length).mean(axis=1))


def _without_line(values: Floats) -> Floats:
    """What is left of a series when its straight line is taken out."""
    n = len(values)
    if n < 3:
        return values - values.mean() if n else values
    place = np.arange(n) - (n - 1) / 2
    centred = values - values.mean()
    return np.asarray(centred - place * float(place @ centred) / float(place @ place))


def _median(values: Floats) -> float:
    """The lower one of two, so that one failure of two values is none yet."""
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else math.inf

"""How many independent values a sample of one run is worth.

Values that come together move together: requests of one task share its prompt, requests sent after each other share a
queue. The variance of "the share of values above x" is then larger than the binomial one by the design effect D, and n
values are worth n / D. Estimates of D, of which the largest counts:

- clusters (agent tier, the unit is the task): the variance of the ratio sum(y) / sum(m) over tasks with m requests of
  which y exceed x, over the binomial variance (Kish, Survey Sampling, 1965; the linearised ratio estimator).
- time (both tiers): D = 1 + 2 (rho_1 + rho_2 + ...) in the order of sending, the sum taken in pairs that may only fall
  and stopped at the first pair that is not positive (Geyer, Statistical Science 7, 1992: initial monotone sequence).
  D is the correlation time: a batch of D values varies like one independent value. Taken of the 0/1 series "exceeds
  x", and of the ranks.
- batches longer than that: n / (1 + LONGER (D - 1)) of the ranks' D. With LONGER = 1 bounds are right on average and
  wrong where it counts: a level that happened to have no long queue shows short correlations and small values at once,
  so that its upper bound is too low and too sure. On the sim's queue at load 0.8, levels of 4,000 requests, the 95 %
  upper bound of p95 then holds in 359 of 400, with 2 in 384, with 2.5 in 390 (bench/coverage.py --levels 400
  --requests 4000 --longer 1). The ranks use every value, so they show a correlation better than the few of the tail.
  The price: where there is a queue, a PASS takes 2.5 times as many requests. Where the first correlation may be chance,
  nothing is added, so that independent values keep nearly all their worth.

x is the q-quantile itself, and the median: at p99 of 100 requests one single value exceeds, which shows no dependence
at all, while the median of the same series shows it well. The largest counts: it errs towards INCONCLUSIVE.

All look at the values that are no failure. Failures come in bursts, and a burst of 30 in 100 is not one event that may
be chance: counted like that, an outage would turn a FAIL into INCONCLUSIVE. So failures count one by one.

Approximate: D is itself estimated; a stretch shorter than a few correlation times cannot show its own correlation. And
it says nothing about the difference between two deployments: that needs deployments as the unit.
"""

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.stats.percentile import nearest_rank

Floats = NDArray[np.float64]
LONGER = 2.5  # than the correlation time; see above
BY_CHANCE = 1.645  # standard errors of the first correlation, 1 / sqrt(n): one-sided 5 %
LONGEST = 3  # correlations are summed up to a lag of n / 3: beyond it too few pairs are left to average


def effective_n(values: Sequence[float], q: float, *, clusters: Sequence[Hashable] | None = None) -> float:
    """How many independent values `values`, in order of sending, are worth for the q-quantile: 1 to n; 0 of none."""
    if not values:
        return 0.0
    series = np.asarray(values, dtype=float)
    is_good = np.isfinite(series)
    good = series[is_good]
    if not len(good):
        return float(len(series))
    members = None if clusters is None else [c for c, kept in zip(clusters, is_good, strict=True) if kept]
    effects = [batch_length(ranks_of(good))]
    for level in {0.5, q}:
        exceeds = (good > np.sort(good)[nearest_rank(len(good), level) - 1]).astype(float)
        effects.append(correlation_time(exceeds))
        if members is not None:
            effects.append(cluster_effect(exceeds, members))
    return max(1.0, len(series) / max(effects))


def ranks_of(values: Sequence[float] | Floats) -> Floats:
    """Ranks from 1, equal values sharing the mean of theirs; a failure (+inf) is the largest value."""
    series = np.asarray(values, dtype=float)
    _, which, counts = np.unique(series, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which], dtype=float)


def batch_length(series: Floats) -> float:
    """In values: as long as the correlation time, and longer where neighbours are alike by more than chance."""
    time, n = correlation_time(series), len(series)
    centred = series - series.mean()
    is_alike = float(centred[1:] @ centred[:-1]) * math.sqrt(n) > BY_CHANCE * float(centred @ centred)
    return 1 + LONGER * (time - 1) if is_alike else time


def correlation_time(series: Floats) -> float:
    """In values, of finite values in time order: 1 for independent ones, and for a constant or very short series."""
    n = len(series)
    centred = series - series.mean() if n else series
    if n < 4 or not centred.any():
        return 1.0
    spectrum = np.fft.rfft(centred, 2 * n)
    rho = np.fft.irfft(spectrum * np.conj(spectrum))[: n // LONGEST + 1]
    rho = rho / rho[0]
    pairs = np.minimum.accumulate(rho[: len(rho) // 2 * 2].reshape(-1, 2).sum(axis=1))
    ends = np.flatnonzero(pairs <= 0)
    kept = pairs[: ends[0]] if len(ends) else pairs
    return max(1.0, float(2 * kept.sum() - 1))


def cluster_effect(exceeds: Floats, clusters: Sequence[Hashable]) -> float:
    """Design effect of 0/1 values that fall into clusters. 1 for constant values or fewer than two clusters."""
    _, member = np.unique(np.asarray([str(c) for c in clusters]), return_inverse=True)
    sizes, sums = np.bincount(member), np.bincount(member, weights=exceeds)
    n, count = len(exceeds), len(sizes)
    share = float(exceeds.mean())
    if count < 2 or share in (0.0, 1.0):
        return 1.0
    binomial = share * (1 - share) / (n - 1)  # n - 1, so that clusters of one have an effect of exactly 1
    residual = sums - share * sizes
    variance = count / (count - 1) * float((residual**2).sum()) / n**2
    return max(1.0, variance / binomial)

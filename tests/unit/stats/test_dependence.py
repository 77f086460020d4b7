"""Coverage on draws whose true quantile is known: a normal distribution's, from a table, and nothing of ours."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from tasks.stats import percentile as stats
from tasks.stats.dependence import cluster_effect, correlation_time, effective_n

NORMAL = {0.5: 0.0, 0.95: 1.6449}  # quantiles of the standard normal distribution
REPEATS = 200


def autoregressive(rng, n: int, phi: float):
    """Standard normal values, each correlated phi with the one before it."""
    noise = rng.standard_normal(n + 200) * math.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise)[200:]


def clustered(rng, n: int, size: int):
    """Standard normal values in clusters with intraclass correlation 0.64."""
    return 0.8 * np.repeat(rng.standard_normal(n // size), size) + 0.6 * rng.standard_normal(n // size * size)


def share_covered(draw, q: float, *, clusters=None, corrected: bool = True) -> tuple[float, float]:
    """How often the one-sided lower and upper 95 % bounds hold the true quantile."""
    lower = upper = 0
    for _ in range(REPEATS):
        values = [float(v) for v in draw()]
        n = effective_n(values, q, clusters=clusters) if corrected else None
        found = stats.percentile(values, q, effective_n=n, one_sided=True)
        lower += found.lower is None or found.lower <= NORMAL[q]
        upper += found.upper is None or found.upper >= NORMAL[q]
    return lower / REPEATS, upper / REPEATS


@pytest.mark.parametrize("q", [0.5, 0.95])
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_bounds_cover_in_a_correlated_series(phi, q):
    """0.95 is promised; 200 repeats have a standard error of 0.015."""
    rng = np.random.default_rng(2718)
    assert min(share_covered(lambda: autoregressive(rng, 500, phi), q)) >= 0.91


def test_bounds_of_independent_draws_would_lie_about_such_a_series():
    """The correction is what makes the test above pass: without it coverage is far from 0.95."""
    rng = np.random.default_rng(2718)
    assert max(share_covered(lambda: autoregressive(rng, 500, 0.8), 0.5, corrected=False)) < 0.80


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_bounds_cover_in_clusters(q):
    rng = np.random.default_rng(31)
    clusters = [i // 5 for i in range(300)]
    assert min(share_covered(lambda: clustered(rng, 300, 5), q, clusters=clusters)) >= 0.91


def test_identical_values_in_a_task_count_once():
    """60 tasks of 5 equal requests are worth 60 values, and the order of the tasks does not matter."""
    rng = np.random.default_rng(5)
    exceeds = np.repeat(rng.permutation([0.0, 1.0] * 30), 5)
    clusters = [i // 5 for i in range(300)]
    mixed = rng.permutation(300)
    assert cluster_effect(exceeds, clusters) == pytest.approx(5, rel=0.05)
    assert cluster_effect(exceeds[mixed], [clusters[i] for i in mixed]) == pytest.approx(5, rel=0.05)


def test_known_correlation_time():
    """The signs of an AR(1) have rho_k = (2 / pi) asin(phi^k) (the arcsine law), so D is a sum known beforehand.

    The estimate may err upwards, never downwards: too large a D only widens the bounds.
    """
    phi = 0.8
    truth = 1 + 2 * sum(2 / math.pi * math.asin(phi**k) for k in range(1, 200))
    rng = np.random.default_rng(8)
    found = [correlation_time((autoregressive(rng, 4000, phi) > 0).astype(float)) for _ in range(20)]
    assert 0.97 * truth < float(np.mean(found)) < 1.25 * truth


def test_independent_values_are_worth_almost_themselves():
    rng = np.random.default_rng(3)
    worth = [effective_n([float(v) for v in rng.standard_normal(500)], 0.95) for _ in range(40)]
    assert float(np.mean(worth)) > 400


@pytest.mark.parametrize("values", [[7.0], [7.0] * 50, [math.inf] * 30, [1.0, 2.0]])
def test_constant_and_short_series_are_taken_as_they_are(values):
    assert effective_n(values, 0.95, clusters=list(range(len(values)))) == len(values)


def test_an_outage_is_no_excuse():
    """30 failures in a row of 100 calls break p95, however sure it is that they had one cause."""
    values = [50.0] * 40 + [math.inf] * 30 + [50.0] * 30
    judged = stats.judge(values, objective=100, fraction=0.95, effective_n=effective_n(values, 0.95))
    assert judged.verdict == "FAIL"


def test_nothing_is_worth_nothing():
    assert effective_n([], 0.95) == 0

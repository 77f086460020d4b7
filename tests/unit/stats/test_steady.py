"""Warm-up and drift in series that are made: where the change is, and whether there is one, is known beforehand."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from tasks.stats import steady


def noise(seed: int, n: int, *, phi: float = 0.0) -> np.ndarray:
    """Log-normal values around 100, each correlated phi with the one before it on the log scale."""
    rng = np.random.default_rng(seed)
    draws = lfilter([math.sqrt(1 - phi**2)], [1.0, -phi], rng.standard_normal(n + 200))[200:]
    return 100 * np.exp(0.2 * draws)


def seconds(n: int, *, rate: float = 5) -> list[float]:
    return [number / rate for number in range(n)]


def slow_start(seed: int, n: int, first: int, factor: float) -> list[float]:
    values = noise(seed, n)
    values[:first] *= factor
    return [float(value) for value in values]


@pytest.mark.parametrize(("first", "factor"), [(20, 3), (40, 2), (60, 5), (40, math.inf)])
def test_a_slow_or_failing_start_is_found(first, factor):
    """All of it, and in most cases little more: MSER rather cuts too much."""
    found = sorted(steady.warmup(slow_start(seed, 200, first, factor)) for seed in range(21))
    assert found[0] >= first - 5
    assert found[10] <= first + 10
    assert found[-1] <= 100


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_a_steady_series_is_hardly_ever_cut(phi):
    cut = [steady.warmup([float(v) for v in noise(seed, 400, phi=phi)]) > 0 for seed in range(200)]
    assert sum(cut) <= 8


def test_drift_is_no_warmup():
    ramp = 1 + np.arange(300) / 300
    assert [steady.warmup([float(v) for v in noise(seed, 300) * ramp]) for seed in range(20)] == [0] * 20


@pytest.mark.parametrize("values", [[], [1.0], [5.0] * 200, [math.inf] * 200, [1.0] * 79])
def test_nothing_to_cut(values):
    assert steady.warmup(values) == 0


@pytest.mark.parametrize("change", [0.5, -0.4])
def test_drift_is_found_and_its_size_is_in_the_interval(change):
    """The median goes from 100 to 100 (1 + change) in a minute: by change / (1 + change / 2) of its middle."""
    n = 600
    ramp = 1 + change * np.arange(n) / n
    truth = change / (1 + change / 2)
    for seed in range(20):
        found = steady.trend([float(v) for v in noise(seed, n) * ramp], seconds(n, rate=10))
        assert found is not None
        assert found.is_drift
        assert found.is_growth == (change > 0)
        assert found.lower < truth < found.upper


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_a_steady_series_does_not_drift(phi):
    """At 99.99 % and a tenth: of 200 not one."""
    found = [steady.trend([float(v) for v in noise(seed, 400, phi=phi)], seconds(400)) for seed in range(200)]
    assert not any(one.is_drift for one in found if one is not None)
    assert sum(one is not None for one in found) >= 180


def test_a_small_drift_does_not_matter():
    n = 2000
    values = noise(1, n) * (1 + 0.05 * np.arange(n) / n)
    found = steady.trend([float(v) for v in values], seconds(n))
    assert found is not None
    assert not found.is_drift


@pytest.mark.parametrize("n", [0, 1, 39])
def test_too_few_to_tell(n):
    assert steady.trend([float(v) for v in noise(1, n)], seconds(n)) is None
    assert steady.trend([float(v) for v in noise(1, 40)], seconds(40)) is not None


def test_all_failed_or_all_alike():
    assert steady.trend([math.inf] * 100, seconds(100)) is None
    found = steady.trend([5.0] * 100, seconds(100))
    assert found is not None
    assert (found.per_minute, found.is_drift) == (0, False)


def test_some_failures_hide_no_drift():
    values = [float(v) for v in noise(3, 300) * (1 + np.arange(300) / 300)]
    failing = [math.inf if number % 10 == 0 else value for number, value in enumerate(values)]
    found = steady.trend(failing, seconds(300))
    assert found is not None
    assert found.is_growth


def test_equal_times_are_no_slope():
    assert steady.trend([float(v) for v in noise(1, 100)], [1.0] * 100) == steady.Trend(0, -math.inf, math.inf, 0)

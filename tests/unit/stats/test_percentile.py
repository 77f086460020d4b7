"""Expected ranks are counted out with exact integer binomials here; the code under test uses the beta function."""

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.stats import percentile as stats

INF = math.inf
LATENCIES = st.lists(st.floats(0, 1e6) | st.just(INF), min_size=1, max_size=120)


def at_most(n: int, percent: int) -> list[int]:
    """P(Bin(n, percent / 100) <= k) for k = 0 to n, exactly: integers in units of 100 ** -n."""
    return list(accumulate(math.comb(n, i) * percent**i * (100 - percent) ** (n - i) for i in range(n + 1)))


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([3, 1, 2], 0.5, 2),
        ([1, 2, 3, 4], 0.5, 2),
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 101)), 0.07, 7),
        ([1, 2, 3], 0.99, 3),
        ([5], 0.01, 5),
        ([1, INF], 0.5, 1),
        ([1, INF, INF], 0.5, INF),
    ],
)
def test_nearest_rank(values, q, expected):
    assert stats.percentile(values, q).estimate == expected


@pytest.mark.parametrize("percent", [50, 95, 99])
@pytest.mark.parametrize("n", [1, 5, 30, 58, 59, 60, 120, 298, 299])
@pytest.mark.parametrize("per_mille", [950, 975])
def test_ranks_are_the_exact_binomial_ones(n, percent, per_mille):
    below, whole = at_most(n, percent), 100**n
    upper = next((r for r in range(1, n + 1) if 1000 * below[r - 1] >= per_mille * whole), None)
    lower = next((r for r in range(n, 0, -1) if 1000 * (whole - below[r - 1]) >= per_mille * whole), None)
    assert stats.ranks(n, percent / 100, confidence=per_mille / 1000) == (lower, upper)


def test_published_interval_of_a_median():
    """n = 10: ranks 2 and 9 hold the median with confidence 0.979 (David and Nagaraja, table of section 7.1)."""
    assert stats.ranks(10, 0.5, confidence=0.975) == (2, 9)


@pytest.mark.parametrize(("q", "least"), [(0.95, 59), (0.99, 299)])
def test_least_n_of_a_pass(q, least):
    assert stats.least_n(q) == least
    assert stats.judge([1.0] * least, objective=2, fraction=q).verdict == "PASS"
    short = stats.judge([1.0] * (least - 1), objective=2, fraction=q)
    assert short.verdict == "INCONCLUSIVE"
    assert str(least) in short.reason


def test_thirty_failures_of_thirty_are_a_fail():
    judged = stats.judge([INF] * 30, objective=100, fraction=0.95)
    assert (judged.verdict, judged.percentile.n, judged.percentile.failed) == ("FAIL", 30, 30)
    assert "30 of 30 failed" in judged.reason


@pytest.mark.parametrize(
    ("measured", "objective", "words"),
    [
        (14066.4, 10_000, "the lower bound (14,066 ms) breaks 10,000 ms"),
        (14066.4, 2_500_000, "the upper bound 14,066 ms keeps 2,500,000 ms"),
        (0.12345, 0.1, "the lower bound (0.1235 ms) breaks 0.1 ms"),
        (655.84, 500, "the lower bound (655.8 ms) breaks 500 ms"),
    ],
)
def test_a_reason_is_written_without_exponents(measured, objective, words):
    assert stats.judge([measured] * 60, objective=objective, fraction=0.5, unit="ms").reason == words


def test_a_failure_is_not_forgotten():
    """One failure in 59 makes the 95 % upper bound infinite: no PASS, whatever the other 58 say."""
    judged = stats.judge([1.0] * 58 + [INF], objective=2, fraction=0.95)
    assert (judged.verdict, judged.percentile.upper) == ("INCONCLUSIVE", INF)


def test_no_values_is_inconclusive_and_says_so():
    judged = stats.judge([], objective=2, fraction=0.95)
    assert (judged.verdict, judged.percentile.estimate, judged.reason) == ("INCONCLUSIVE", None, "no values")


def test_bounds_on_both_sides_are_inconclusive():
    judged = stats.judge([float(v) for v in range(1, 201)], objective=190, fraction=0.95)
    assert judged.verdict == "INCONCLUSIVE"
    assert "both sides of 190" in judged.reason


def test_effective_n_decides_about_a_pass():
    assert stats.judge([1.0] * 590, objective=2, fraction=0.95, effective_n=58).verdict == "INCONCLUSIVE"
    assert stats.judge([1.0] * 590, objective=2, fraction=0.95, effective_n=59).verdict == "PASS"


@pytest.mark.parametrize("bad", [0, 1, -0.1, 95])
def test_q_outside_is_refused(bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.percentile([1], bad)


def test_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        stats.percentile([1, math.nan], 0.5)


@given(LATENCIES, st.sampled_from([0.5, 0.95, 0.99]))
def test_bounds_enclose_the_estimate(values, q):
    found = stats.percentile(values, q)
    assert found.lower is None or found.lower <= found.estimate
    assert found.upper is None or found.upper >= found.estimate
    assert found.estimate in values


@given(LATENCIES, st.randoms())
def test_order_does_not_matter(values, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    assert stats.percentile(values, 0.95) == stats.percentile(shuffled, 0.95)


@given(LATENCIES, st.sampled_from([0.5, 0.95, 0.99]), st.floats(1, 120))
def test_dependence_only_widens(values, q, effective_n):
    exact, wide = stats.percentile(values, q), stats.percentile(values, q, effective_n=effective_n)
    assert wide.lower is None or (exact.lower is not None and wide.lower <= exact.lower)
    assert wide.upper is None or (exact.upper is not None and wide.upper >= exact.upper)


@given(LATENCIES, st.floats(1, 1e6))
def test_a_failure_never_helps(values, objective):
    """Turning a value into a failure moves no verdict towards PASS."""
    better = {"FAIL": 0, "INCONCLUSIVE": 1, "PASS": 2}
    before = stats.judge(values, objective=objective, fraction=0.95).verdict
    after = stats.judge([INF, *values[1:]], objective=objective, fraction=0.95).verdict
    assert better[after] <= better[before]
